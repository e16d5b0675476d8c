"""Which ranks of a simulated world run, and which of them an expectation judges."""

from __future__ import annotations

import pytest

from pytest_shardcheck.expectations import Expectation, judge, parse_expectation, with_ranks
from pytest_shardcheck.vocabulary import UsageError, WorldSpec

PP_DP = (("pp", 4), ("dp", 4))
WORLD = WorldSpec(size=16, named_axes=PP_DP, simulated=True)


def expect(**arguments: object) -> Expectation:
    return parse_expectation("max_memory", (), {"state": 1, **arguments}, where="t", level=0)


@pytest.mark.parametrize(
    ("narrowing", "ranks"),
    [
        ({}, (0, 15)),
        ({"rank": 0}, (0, 15)),
        ({"rank": [3, -2]}, (0, 3, 14, 15)),
        ({"rank": slice(4, 8)}, (0, 4, 7, 15)),
        ({"rank": {"pp": 1}}, (0, 4, 7, 15)),
        ({"rank": {"dp": -1}}, (0, 3, 15)),
        ({"rank": 16}, (0, 15)),  # which its verdict says
        ({"rank": {"tp": 0}}, (0, 15)),
        ({"rank": 5, "world_size": 8}, (0, 15)),  # not in this world
    ],
)
def test_the_first_the_last_and_every_rank_that_a_marker_names(
    narrowing: dict[str, object], ranks: tuple[int, ...]
) -> None:
    assert with_ranks(WORLD, [expect(**narrowing)]).running == ranks


def test_ranks_that_were_asked_for_and_those_that_a_marker_names() -> None:
    world = WorldSpec(size=16, simulated=True, ranks=(6,))
    assert with_ranks(world, []).running == (6,)
    assert with_ranks(world, [expect(rank=2)]).running == (2, 6)


@pytest.mark.parametrize("argument", ["allocated", "reserved"])
def test_what_an_allocator_would_say_is_refused(argument: str) -> None:
    ceiling = expect(**{argument: "1 GB"})
    with pytest.raises(UsageError, match=f"{argument}=.*nothing is allocated in a simulated world"):
        with_ranks(WORLD, [ceiling])
    assert with_ranks(WORLD, [expect(**{argument: 1, "world_size": 2})]).running == (0, 15)
    assert with_ranks(WorldSpec(size=2), [ceiling]).running == (0, 1)


def test_a_real_world_runs_all() -> None:
    assert with_ranks(WorldSpec(size=4), [expect(rank=2)]).running == (0, 1, 2, 3)
    assert with_ranks(WorldSpec(size=1, simulated=True), []).running == (0,)


def test_only_ranks_that_run_are_judged() -> None:
    world = WorldSpec(size=16, named_axes=PP_DP, simulated=True, ranks=(0, 4, 15))
    assert expect().narrowing.select_ranks(world) == (0, 4, 15)
    assert expect(rank={"pp": 1}).narrowing.select_ranks(world) == (4,)
    with pytest.raises(LookupError, match="of ranks 8-11 none is simulated"):
        expect(rank={"pp": 2}).narrowing.select_ranks(world)


def test_a_rank_that_does_not_run_is_never_judged_in_silence() -> None:
    world = WorldSpec(size=16, simulated=True, ranks=(0, 15))
    (verdict,) = judge([expect(rank=7)], world, {})
    assert verdict.kind == "unmatched"
    assert "of rank 7 none is simulated (only ranks 0, 15)" in verdict.detail
    assert "ranks=[7]" in verdict.detail
