"""Markers' arguments, each of which is refused in words that let its reader mend it."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest

from pytest_shardcheck.expectations import (
    MARKERS,
    Expectation,
    Narrowing,
    max_memory,
    memory,
    parse_expectation,
)
from pytest_shardcheck.expectations.memory import MEMORY
from pytest_shardcheck.vocabulary import UsageError

MEMORY_MARKERS = ("memory", "max_memory")
WHERE = "tests/test_step.py::test_step"


def parse(marker: str, *args: object, **kwargs: object) -> Expectation:
    return parse_expectation(marker, args, kwargs, where=WHERE, level=0)


def refusal(marker: str, *args: object, **kwargs: object) -> str:
    with pytest.raises(UsageError) as error:
        parse(marker, *args, **kwargs)
    return str(error.value)


def test_the_markers() -> None:
    assert MARKERS == (
        "memory",
        "max_memory",
        "collectives",
        "max_collectives",
        "saved_activations",
        "max_saved_activations",
    )


def test_what_an_expectation_holds() -> None:
    ceiling = parse_expectation(
        "max_memory",
        (),
        {"state": "4.3 MB", "grads": 0, "params": {2: "1 MB", 4: 5}, "region": "step"},
        where=WHERE,
        level=2,
    )
    assert ceiling == Expectation(
        marker="max_memory",
        values={"params": {2: 1_000_000, 4: 5}, "grads": 0, "state": 4_300_000},
        narrowing=Narrowing(region="step"),
        tolerance=0,
        level=2,
        where=WHERE,
    )
    assert not ceiling.exact
    assert parse("memory", state=1).exact


def test_a_callable_is_kept() -> None:
    assert parse("memory", state=len).values == {"state": len}


@pytest.mark.parametrize("argument", MEMORY.arguments)
@pytest.mark.parametrize("marker", MEMORY_MARKERS)
def test_each_argument_is_taken(marker: str, argument: str) -> None:
    assert parse(marker, **{argument: "1 kB"}).values == {argument: 1000}


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (-1, "-1 is negative"),
        (True, "True is a bool"),
        (1.5, "1.5 is a float"),
        (None, "None is a NoneType"),
        ([1], "[1] is a list"),
        ("2.1", "'2.1' has no unit"),
        ("2.1 XB", "'2.1 XB' has no unit that is known (B, kB, MB"),
        ("-2.1 MB", "'-2.1 MB' is negative"),
        ("much", "'much' is not a size"),
    ],
)
@pytest.mark.parametrize("marker", MEMORY_MARKERS)
def test_a_wrong_value_is_refused_with_all_that_is_accepted(
    marker: str, given: object, seen: str
) -> None:
    message = refusal(marker, grads=given)
    assert message.startswith(f"{WHERE}: {marker}(grads={given!r}): {seen}")
    assert message.endswith(
        'expected an int of bytes or a size with a unit such as "2.1 MB" or "80 GiB", a mapping '
        "from world size to either, or a callable of the world."
    )


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({}, "the mapping is empty"),
        ({2: -1}, "-1 is negative"),
        ({2: "1 XB"}, "'1 XB' has no unit that is known"),
        ({2: True}, "True is a bool"),
        ({2: {2: 1}}, "{2: 1} is a dict"),
        ({0: 1}, "0 is not a world size"),
        ({True: 1}, "True is not a world size"),
        ({"2": 1}, "'2' is not a world size"),
    ],
)
def test_a_wrong_mapping_is_refused(given: dict[Any, Any], seen: str) -> None:
    message = refusal("max_memory", state=given)
    assert message.startswith(f"{WHERE}: max_memory(state={given!r}): {seen}")
    assert "; expected " in message


def test_an_unknown_argument_is_refused_with_a_suggestion() -> None:
    assert refusal("max_memory", stat=1, state=1) == (
        f"{WHERE}: max_memory(stat=1): there is no argument 'stat' (did you mean 'state'?); it "
        "judges peak, live, peak_above_start, growth, params, grads, optimizer, buffers, state, "
        "allocated, reserved, and takes rank=, world_size=, region=, phase=, device=."
    )
    assert "(did you mean 'region'?)" in refusal("memory", state=1, regoin="step")
    assert "there is no argument 'xyz'; it judges" in refusal("memory", xyz=1)


def test_a_positional_value_is_the_peak() -> None:
    assert parse("max_memory", "1 MB").values == {"peak": 1_000_000}


def test_more_than_one_positional_value_is_refused() -> None:
    for message in (refusal("memory", 1, 2), refusal("memory", 1, peak=2)):
        assert "memory(...) takes one positional value, its peak; given (1" in message
        assert "it judges peak, live" in message


@pytest.mark.parametrize("arguments", [{}, {"region": "step"}, {"tolerance": 1}])
def test_a_marker_that_judges_nothing_is_refused(arguments: dict[str, Any]) -> None:
    assert refusal("memory", **arguments) == (
        f"{WHERE}: memory(...) names nothing to judge: it judges peak, live, peak_above_start, "
        "growth, params, grads, optimizer, buffers, state, allocated, reserved, and takes rank=, "
        "world_size=, region=, phase=, device=, tolerance=."
    )


@pytest.mark.parametrize(
    ("given", "tolerance"),
    [
        (0, 0),
        (16, 16),
        ("1 kB", 1000),
        ("1%", Fraction(1, 100)),
        ("0.5 %", Fraction(1, 200)),
        (0.01, Fraction(1, 100)),
        (0.0, 0),
        (1e-05, Fraction(1, 100_000)),
    ],
)
def test_an_exact_marker_takes_a_tolerance(given: object, tolerance: object) -> None:
    assert parse("memory", state=1, tolerance=given).tolerance == tolerance


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (-1, "-1 is negative"),
        (True, "True is a bool"),
        (1.0, "a share lies between nothing and the whole"),
        (-0.1, "a share lies between nothing and the whole"),
        (float("nan"), "a share lies between nothing and the whole"),
        (float("inf"), "a share lies between nothing and the whole"),
        ("100%", "a share lies between nothing and the whole"),
        ("-1%", "'-1%' is negative"),
        ("1 percent", "'1 percent' has no unit that is known"),
        (None, "None is a NoneType"),
    ],
)
def test_a_wrong_tolerance_is_refused(given: object, seen: str) -> None:
    message = refusal("memory", state=1, tolerance=given)
    assert message.startswith(f"{WHERE}: memory(tolerance={given!r}): {seen}")
    assert message.endswith('such as "1%" or 0.01.')


def test_a_ceiling_takes_no_tolerance() -> None:
    assert refusal("max_memory", state=1, tolerance="1%") == (
        f"{WHERE}: max_memory(tolerance='1%'): a ceiling has no tolerance; raise it, or use the "
        "exact memory(...)."
    )


@pytest.mark.parametrize(
    ("argument", "given", "seen"),
    [
        *(
            ("rank", given, "is not a choice of ranks; expected an index (negative counts")
            for given in ("0", True, 1.0, None, [], [0, True], [0, "1"], [[0]])
        ),
        ("rank", slice("a"), "is not a slice of ranks; expected ints"),
        ("rank", slice(None, True), "is not a slice of ranks; expected ints"),
        ("rank", slice(0, 2, 0), "is not a slice of ranks; expected ints, and a step other"),
        *(
            ("rank", given, "is not a mesh coordinate; expected an int by axis name")
            for given in ({}, {"pp": "last"}, {"pp": True}, {0: 1}, {"pp": 0, "dp": [0]})
        ),
        *(
            ("world_size", given, "is not a world size; expected an int from 1 on, or several")
            for given in (0, -2, True, "2", None, [], [2, 0], [2, True], 2.0)
        ),
        *(("region", given, "is not a region; expected its name") for given in ("", 1, None)),
        *(
            ("device", given, "is not a device")
            for given in (0, None, "", "cuda:", "cuda:x", "cuda:0\n", "CPU", "gpu")
        ),
        ("device", "cdua:0", "is not a device (did you mean 'cuda'?); expected such as 'cpu'"),
    ],
)
def test_a_wrong_narrowing_is_refused(argument: str, given: object, seen: str) -> None:
    message = refusal("max_memory", state=1, **{argument: given})
    assert message.startswith(f"{WHERE}: max_memory({argument}={given!r}): {given!r} {seen}")


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ({}, ""),
        ({"rank": -1}, "rank=-1"),
        ({"rank": [1, 0]}, "rank=[0, 1]"),
        ({"rank": (1, 1)}, "rank=1"),
        ({"rank": range(2)}, "rank=[0, 1]"),
        ({"rank": {3}}, "rank=3"),
        ({"rank": slice(1, None)}, "rank=slice(1, None, None)"),
        ({"rank": {"pp": -1}}, "rank={'pp': -1}"),
        ({"world_size": 2}, "world_size=2"),
        ({"world_size": (2, 2)}, "world_size=2"),
        ({"world_size": (4, 2)}, "world_size=[2, 4]"),
        ({"device": "cuda:0", "region": "step"}, "region='step', device='cuda:0'"),
    ],
)
def test_a_narrowing_is_written_as_a_marker_writes_it(
    arguments: dict[str, Any], written: str
) -> None:
    assert str(parse("max_memory", state=1, **arguments).narrowing) == written


@pytest.mark.parametrize(("function", "marker"), [(memory, "memory"), (max_memory, "max_memory")])
def test_a_function_expects_what_its_marker_does(function: Any, marker: str) -> None:
    expectation = function(state="1 MB", rank=-1)
    assert expectation.marker == marker
    assert expectation.values == {"state": 1_000_000}
    assert expectation.level == 0
    assert str(expectation.narrowing) == "rank=-1"


@pytest.mark.parametrize("function", [memory, max_memory])
def test_a_function_refuses_what_its_marker_does(function: Any) -> None:
    expected = re.escape(f"shardcheck.check: {function.__name__}(state=None): None is a NoneType")
    with pytest.raises(UsageError, match=expected):
        function(state=None)
    with pytest.raises(UsageError, match=r"did you mean 'state'\?"):
        function(stat=1)
    with pytest.raises(UsageError, match="takes one positional value"):
        function(1, 2)
