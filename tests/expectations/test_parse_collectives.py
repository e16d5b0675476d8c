"""The arguments of `collectives`, `saved_activations` and their ceilings."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_shardcheck.expectations import (
    Expectation,
    collectives,
    max_collectives,
    max_memory,
    max_saved_activations,
    memory,
    saved_activations,
)
from pytest_shardcheck.vocabulary import OPERATIONS, UsageError

CLOSED = dict.fromkeys(OPERATIONS, 0)


def refusal(function: Any, *args: object, **kwargs: object) -> str:
    with pytest.raises(UsageError) as error:
        function(*args, **kwargs)
    return str(error.value)


def test_collectives_is_closed() -> None:
    assert collectives().values == CLOSED
    assert collectives(all_gather=16).values == {**CLOSED, "all_gather": 16}


def test_an_ignored_kind_is_not_judged() -> None:
    for ignored in ("barrier", ("barrier",), ["barrier"], {"barrier"}):
        values = collectives(all_reduce=1, ignore=ignored).values
        assert set(values) == set(OPERATIONS) - {"barrier"}


@pytest.mark.parametrize(
    ("ignored", "seen"),
    [
        ("barier", "there is no kind 'barier' (did you mean 'barrier'?)"),
        ((), "() names no kinds"),
        (1, "1 names no kinds"),
        (("all_reduce",), "all_reduce is also given a value"),
    ],
)
def test_a_wrong_ignore_is_refused(ignored: object, seen: str) -> None:
    message = refusal(collectives, all_reduce=1, ignore=ignored)
    assert f"collectives(ignore={ignored!r}): {seen}" in message


def test_a_ceiling_is_not_closed_and_takes_totals_and_kinds() -> None:
    ceiling = max_collectives(
        all_gather={2: 3, 4: 5},
        count=9,
        bytes="1 MB",
        largest={"all_reduce": "2 kB", "broadcast": {2: 1}},
        wire_bytes={2: 5},
    )
    assert ceiling.values == {
        "all_gather": {2: 3, 4: 5},
        "count": 9,
        "bytes": 1_000_000,
        "largest[all_reduce]": 2000,
        "largest[broadcast]": {2: 1},
        "wire_bytes": {2: 5},
    }


@pytest.mark.parametrize("total", ["count", "bytes", "wire_bytes", "largest"])
def test_the_exact_marker_takes_no_totals(total: str) -> None:
    message = refusal(collectives, **{total: 1})
    assert f"only the ceiling max_collectives judges {total}" in message


@pytest.mark.parametrize("given", [-1, True, 1.5, "1", "1 kB", None, [1]])
@pytest.mark.parametrize("function", [collectives, max_collectives])
def test_a_count_is_an_int(function: Any, given: object) -> None:
    message = refusal(function, all_reduce=given)
    assert f"(all_reduce={given!r}): {given!r} is no count; expected an int from 0 on" in message


def test_wrong_arguments_are_refused_with_a_suggestion() -> None:
    assert "did you mean 'all_gather'?" in refusal(collectives, allgather=1)
    assert "did you mean 'group'?" in refusal(collectives, groop="tp")
    assert "takes no positional value; given (1,)" in refusal(collectives, 1)
    assert "there is no kind 'all_reduc'" in refusal(max_collectives, bytes={"all_reduc": 1})
    assert "max_collectives(ignore='barrier'): there is no argument" in refusal(
        max_collectives, count=1, ignore="barrier"
    )
    assert "names nothing to judge" in refusal(max_collectives, group="tp")


@pytest.mark.parametrize("given", ["", 1, None, ("tp",)])
def test_a_wrong_group_is_refused(given: object) -> None:
    assert f"{given!r} is not a process group; expected" in refusal(collectives, group=given)


@pytest.mark.parametrize("given", ["", 1, None, "Forward", "bakward"])
@pytest.mark.parametrize("function", [collectives, saved_activations, memory])
def test_a_wrong_phase_is_refused(function: Any, given: object) -> None:
    arguments = {} if function is collectives else {"peak" if function is memory else "bytes": 1}
    message = refusal(function, phase=given, **arguments)
    assert f"{given!r} is not a phase" in message
    assert "expected 'forward', 'backward', 'optimizer'" in message


@pytest.mark.parametrize("argument", ["state", "params", "growth", "allocated"])
def test_a_phase_has_no_state(argument: str) -> None:
    message = refusal(max_memory, phase="backward", **{argument: 1})
    assert f"a phase narrows peak, live, peak_above_start; {argument} is one" in message


def test_saved_activations_count_tensors_and_bytes() -> None:
    assert saved_activations(count=2, packed=3).values == {"count": 2, "packed": 3}
    ceiling: Expectation = max_saved_activations(bytes="300 kB", storage_bytes={2: 5})
    assert ceiling.values == {"bytes": 300_000, "storage_bytes": {2: 5}}
    assert "'3 kB' is no count" in refusal(max_saved_activations, count="3 kB")
    assert "takes no positional value" in refusal(max_saved_activations, 5)


def test_a_tolerance_is_in_the_unit_of_what_is_judged() -> None:
    assert collectives(all_reduce=4, tolerance=1).tolerance == 1
    assert saved_activations(bytes=4, tolerance="1 kB").tolerance == 1000
    assert "'1 kB' is no count" in refusal(collectives, all_reduce=4, tolerance="1 kB")
    assert "'1 kB' is no count" in refusal(saved_activations, packed=4, tolerance="1 kB")
    assert "a ceiling has no tolerance" in refusal(max_collectives, count=1, tolerance=1)


def test_narrowings_are_written_as_a_marker_writes_them() -> None:
    narrowed = collectives(rank=0, region="step", phase="backward", group="tp").narrowing
    assert str(narrowed) == "rank=0, region='step', phase='backward', group='tp'"
