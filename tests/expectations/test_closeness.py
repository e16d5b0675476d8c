"""Which expectations hold in a world, and what their values come to there."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_shardcheck.expectations import (
    Expectation,
    applicable,
    check_world_sizes,
    parse_expectation,
)
from pytest_shardcheck.vocabulary import UsageError, WorldSpec

WHERE = "test_step.py::test_step"
WORLD = WorldSpec(size=2)


def expect(marker: str = "max_memory", level: int = 0, **arguments: object) -> Expectation:
    return parse_expectation(marker, (), arguments, where=WHERE, level=level)


def values(*expectations: Expectation, spec: WorldSpec = WORLD) -> list[dict[str, Any]]:
    return [dict(expectation.values) for expectation in applicable(expectations, spec)]


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (5, 5),
        ("1 kB", 1000),
        ({2: 7, 4: 1}, 7),
        ({2: "1 kB"}, 1000),
        (lambda world: 8 // world.size, 4),
        (lambda world: f"{world.size} kB", 2000),
    ],
)
def test_a_value_is_worked_out_for_the_world(given: object, value: int) -> None:
    assert values(expect(state=given)) == [{"state": value}]


def test_a_mapping_without_this_world_is_refused() -> None:
    with pytest.raises(UsageError) as error:
        values(expect(state={8: 1, 4: 1}))
    assert str(error.value) == (
        f"{WHERE}: max_memory(state={{8: 1, 4: 1}}): there is no value for world size 2; add one, "
        "or narrow the marker with world_size=[4, 8]."
    )


def test_a_mapping_may_name_a_world_of_one() -> None:
    assert values(expect(state={1: 5}), spec=WorldSpec(size=1)) == [{"state": 5}]


def test_a_mapping_narrowed_to_its_worlds_is_not_asked_about_others() -> None:
    assert values(expect(state={4: 1, 8: 1}, world_size=[4, 8])) == []


def test_a_callable_that_raises_is_refused_with_its_error() -> None:
    def broken(world: WorldSpec) -> int:
        raise ZeroDivisionError("no layers")

    with pytest.raises(UsageError, match="the callable raised ZeroDivisionError: no layers") as e:
        values(expect(state=broken))
    assert str(e.value).startswith(f"{WHERE}: max_memory(state=<function")
    assert "WorldSpec(size=2" in str(e.value)
    assert isinstance(e.value.__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("returned", "seen"),
    [
        (None, "None is a NoneType"),
        (-1, "-1 is negative"),
        (True, "True is a bool"),
        (2.5, "2.5 is a float"),
        ("2 XB", "'2 XB' has no unit that is known"),
        ({2: 1}, "{2: 1} is a dict"),
    ],
)
def test_a_callable_that_returns_no_amount_is_refused(returned: object, seen: str) -> None:
    with pytest.raises(UsageError) as error:
        values(expect(state=lambda _: returned))
    assert "the callable returned, given WorldSpec(size=2" in str(error.value)
    assert f"): {seen}" in str(error.value)


def test_world_size_narrows() -> None:
    narrowed = [expect(state=1, world_size=2), expect(state=2, world_size=[4, 8])]
    assert values(*narrowed) == [{"state": 1}]
    assert values(*narrowed, spec=WorldSpec(size=8)) == [{"state": 2}]
    assert values(*narrowed, spec=WorldSpec(size=3)) == []


def test_a_world_size_that_the_test_runs_at_is_accepted() -> None:
    check_world_sizes([expect(state=1), expect(state=1, world_size=[4, 16])], [2, 4])
    check_world_sizes([expect(state=1, world_size=1)], [1])


@pytest.mark.parametrize(("given", "written"), [(3, "3"), ([8, 3], "[3, 8]")])
def test_a_world_size_that_the_test_never_runs_at_is_refused(given: object, written: str) -> None:
    with pytest.raises(UsageError) as error:
        check_world_sizes([expect(state=1, world_size=given)], [64, 9, 2, 9])
    assert str(error.value) == (
        f"{WHERE}: max_memory(world_size={written}): the test runs at world size 2, 9, 64 and "
        "never there."
    )


def test_the_closest_marker_wins() -> None:
    assert values(expect(level=2, state=3), expect(level=0, state=1), expect(level=1, state=2)) == [
        {"state": 1}
    ]


def test_closeness_is_per_argument() -> None:
    assert values(expect(level=0, grads=1), expect(level=1, grads=2, state=3)) == [
        {"grads": 1},
        {"state": 3},
    ]


@pytest.mark.parametrize(
    "narrowing", [{"rank": 0}, {"region": "step"}, {"device": "cpu"}, {"world_size": 2}]
)
def test_closeness_is_per_narrowing(narrowing: dict[str, Any]) -> None:
    further = expect(level=1, state=2, **narrowing)
    assert values(expect(state=1), further) == [{"state": 1}, {"state": 2}]
    assert values(expect(state=1, **narrowing), further) == [{"state": 1}]


@pytest.mark.parametrize(
    ("closer", "further"),
    [
        ({"rank": [64, 9, 1]}, {"rank": (1, 9, 64, 9)}),
        ({"rank": {"pp": 0, "dp": 1}}, {"rank": {"dp": 1, "pp": 0}}),
        ({"world_size": [64, 9, 2]}, {"world_size": (2, 9, 64)}),
    ],
)
def test_a_narrowing_written_in_another_order_is_the_same(
    closer: dict[str, Any], further: dict[str, Any]
) -> None:
    assert values(expect(state=1, **closer), expect(level=1, state=2, **further)) == [{"state": 1}]


def test_an_exact_marker_and_a_ceiling_both_apply() -> None:
    assert values(expect("memory", state=1), expect(level=1, state=2)) == [
        {"state": 1},
        {"state": 2},
    ]


def test_markers_of_one_level_all_apply() -> None:
    assert values(expect(state=1), expect(state=2)) == [{"state": 1}, {"state": 2}]


def test_a_closer_marker_of_another_world_does_not_win() -> None:
    assert values(expect(state=1, world_size=4), expect(level=1, state=2)) == [{"state": 2}]


def test_a_value_that_a_closer_marker_replaces_is_never_worked_out() -> None:
    assert values(expect(state=1), expect(level=1, state={4: 2})) == [{"state": 1}]


def test_working_out_twice_changes_nothing() -> None:
    once = applicable([expect(level=1, state={2: 5}), expect(level=0, grads="1 kB")], WORLD)
    assert applicable(once, WORLD) == once
