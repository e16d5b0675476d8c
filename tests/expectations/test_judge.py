"""Expectations against readings: what is met, and each way in which one is not."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_shardcheck.expectations import judge, judge_given, max_memory, memory
from pytest_shardcheck.vocabulary import MemoryReading, Reading, StateBytes, Verdict, WorldSpec

WORLD = WorldSpec(size=2)
MESH = WorldSpec(size=4, named_axes=(("pp", 2), ("dp", 2)))
FULL = {"params": 100, "grads": 100, "optimizer": 200, "buffers": 8}


def read(rank: int, region: str = "step", occurrence: int = 0, **options: Any) -> Reading:
    """Build a reading of FULL, with `state` in its place and the other options of Reading."""
    state = StateBytes(**options.pop("state", FULL))
    held = MemoryReading(device="cpu", by_device={"cpu": state})
    return Reading(rank=rank, region=region, occurrence=occurrence, memory=held, **options)


def everywhere(size: int = 2, **options: Any) -> dict[int, list[Reading]]:
    return {rank: [read(rank, **options)] for rank in range(size)}


def one(expectation: Any, readings: Any, spec: WorldSpec = WORLD) -> Verdict:
    (verdict,) = judge([expectation], spec, readings)
    return verdict


@pytest.mark.parametrize(
    ("argument", "size"),
    [("params", 100), ("grads", 100), ("optimizer", 200), ("buffers", 8), ("state", 408)],
)
def test_a_byte_decides(argument: str, size: int) -> None:
    kinds = {
        function: [one(function(**{argument: size + d}), everywhere()).kind for d in (-1, 0, 1)]
        for function in (max_memory, memory)
    }
    assert kinds[max_memory] == ["crossed", "met", "met"]
    assert kinds[memory] == ["different", "met", "different"]


def test_a_verdict_has_every_rank_and_its_breakdown() -> None:
    readings = {0: [read(0)], 1: [read(1, state={**FULL, "grads": 101})]}
    verdict = one(max_memory(state=408), readings)
    assert (verdict.marker, verdict.argument, verdict.region) == ("max_memory", "state", "step")
    assert verdict.kind == "crossed"
    assert [(f.rank, f.measured, f.expected) for f in verdict.figures] == [
        (0, 408, 408),
        (1, 409, 408),
    ]
    assert verdict.figures[1].breakdown.grads == 101


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_is_enough_to_fail(rank: int) -> None:
    readings = everywhere()
    readings[rank] = [read(rank, state={**FULL, "params": 99})]
    assert one(memory(params=100), readings).kind == "different"


@pytest.mark.parametrize(
    ("tolerance", "bytes_"), [(2, 2), ("2 B", 2), ("2%", 4), ("2.4%", 4), (0.02, 4)]
)
def test_a_tolerance_ends_at_its_last_byte(tolerance: object, bytes_: int) -> None:
    def kind(optimizer: int) -> str:
        readings = everywhere(state={**FULL, "optimizer": optimizer})
        return one(memory(optimizer=200, tolerance=tolerance), readings).kind

    assert [kind(200 + d) for d in (-bytes_, bytes_)] == ["met", "met"]
    assert [kind(200 + d) for d in (-bytes_ - 1, bytes_ + 1)] == ["different", "different"]


def test_each_argument_has_its_own_verdict() -> None:
    verdicts = judge([max_memory(params=100, grads=99)], WORLD, everywhere())
    assert [(v.argument, v.kind) for v in verdicts] == [("params", "met"), ("grads", "crossed")]


# Ranks


@pytest.mark.parametrize(
    ("rank", "judged"),
    [
        (0, [0]),
        (-1, [3]),
        ([0, -1], [0, 3]),
        ([1, -3], [1]),
        (slice(None, None, 2), [0, 2]),
        (slice(-2, None), [2, 3]),
        (slice(None, None, -1), [0, 1, 2, 3]),
        (slice(1, 99), [1, 2, 3]),
        ({"pp": -1}, [2, 3]),
        ({"pp": -2}, [0, 1]),
        ({"dp": 0}, [0, 2]),
        ({"pp": 0, "dp": 1}, [1]),
    ],
)
def test_rank_narrows(rank: object, judged: list[int]) -> None:
    verdict = one(max_memory(state=1, rank=rank), everywhere(4), MESH)
    assert [figure.rank for figure in verdict.figures] == judged


def test_ranks_are_judged_in_order_in_a_large_world() -> None:
    spec = WorldSpec(size=128)
    verdict = one(max_memory(state=1, rank=[64, -119, 1, -128]), everywhere(128), spec)
    assert [figure.rank for figure in verdict.figures] == [0, 1, 9, 64]


def test_a_rank_that_is_not_judged_may_measure_anything() -> None:
    readings = {0: [read(0)], 1: [read(1, state={})]}
    assert one(memory(state=408, rank=0), readings).kind == "met"
    assert one(memory(state=408, rank=1), readings).kind == "unmeasured"


@pytest.mark.parametrize(
    ("rank", "detail"),
    [
        (4, "rank 4 is not in this world of ranks 0-3"),
        (-5, "rank -5 is not in this world of ranks 0-3"),
        ([0, 4], "rank 4 is not in this world of ranks 0-3"),
        (slice(4, 8), "the slice holds no rank of this world of ranks 0-3"),
        (
            {"ppp": 0},
            "the mesh has no axis 'ppp' (did you mean 'pp'?); its axes: 'pp' of 2, 'dp' of 2",
        ),
        ({"pp": 2}, "index 2 is not on the axis 'pp' of 2"),
        ({"pp": -3}, "index -3 is not on the axis 'pp' of 2"),
    ],
)
def test_a_rank_that_matches_nothing_fails(rank: object, detail: str) -> None:
    verdicts = judge([max_memory(state=10**9, grads=0, rank=rank)], MESH, everywhere(4))
    assert [(v.argument, v.kind) for v in verdicts] == [
        ("grads", "unmatched"),
        ("state", "unmatched"),
    ]
    assert {v.detail for v in verdicts} == {detail}


# Regions


def in_regions(*regions: str, **options: Any) -> dict[int, list[Reading]]:
    return {rank: [read(rank, region, **options) for region in regions] for rank in range(2)}


def test_without_region_every_outermost_region_is_judged_and_no_nested_one() -> None:
    nested = {rank: [read(rank, "inner", outermost=False)] for rank in range(2)}
    outer = in_regions("warm-up", "step")
    readings = {rank: nested[rank] + outer[rank] for rank in range(2)}
    verdicts = judge([max_memory(state=407)], WORLD, readings)
    assert [(v.region, v.kind) for v in verdicts] == [("warm-up", "crossed"), ("step", "crossed")]


def test_each_occurrence_is_judged() -> None:
    more = {**FULL, "grads": 101}
    readings = {
        rank: [read(rank, occurrence=0), read(rank, occurrence=1, state=more)] for rank in range(2)
    }
    for expectation in (max_memory(grads=100), max_memory(grads=100, region="step")):
        verdicts = judge([expectation], WORLD, readings)
        assert [(v.occurrence, v.kind) for v in verdicts] == [(0, "met"), (1, "crossed")]


def test_a_named_region_is_judged_alone_and_may_be_nested() -> None:
    inner = {rank: [read(rank, "inner", outermost=False), read(rank)] for rank in range(2)}
    verdict = one(memory(state=407, region="inner"), inner)
    assert (verdict.region, verdict.kind) == ("inner", "different")
    assert verdict.narrowing == "region='inner'"


def test_a_misspelt_region_fails_with_those_that_there_were() -> None:
    readings = {**in_regions("step"), 0: [read(0, "step"), read(0, "eval")]}
    verdict = one(max_memory(state=10**9, region="stpe"), readings)
    assert (verdict.kind, verdict.region) == ("unmatched", "stpe")
    assert verdict.detail == (
        "the judged ranks opened no region 'stpe' (did you mean 'step'?); there were 'step' "
        "(ranks 0-1), 'eval' (rank 0)"
    )


def test_a_region_of_other_ranks_than_the_judged_fails() -> None:
    readings = {0: [read(0, "eval"), read(0)], 1: [read(1)]}
    verdict = one(max_memory(state=10**9, region="eval", rank=1), readings)
    assert verdict.kind == "unmatched"
    assert verdict.detail == (
        "the judged ranks opened no region 'eval'; there were 'eval' (rank 0), 'step' (ranks 0-1)"
    )


def test_a_region_where_the_test_opened_none_fails() -> None:
    readings = everywhere(region="test", implicit=True)
    verdict = one(max_memory(state=10**9, region="step"), readings)
    assert verdict.kind == "unmatched"
    assert verdict.detail == (
        "the test opened no region; put the step inside "
        "`with shardcheck.measure(model, optimizer, region='step'):`"
    )


@pytest.mark.parametrize("readings", [{}, {0: [], 1: []}])
def test_no_reading_at_all_fails(readings: dict[int, list[Reading]]) -> None:
    verdict = one(max_memory(state=10**9), readings)
    assert verdict.kind == "unmatched"
    assert "`with shardcheck.measure(model, optimizer, region='step'):`" in verdict.detail


def test_only_nested_regions_fail_an_expectation_that_names_none() -> None:
    verdict = one(max_memory(state=10**9), in_regions("inner", outermost=False))
    assert verdict.kind == "unmatched"
    assert "opened no outermost region; there were 'inner' (ranks 0-1)" in verdict.detail


@pytest.mark.parametrize("region", [None, "step"])
def test_a_rank_without_the_region_fails(region: str | None) -> None:
    narrowing = {} if region is None else {"region": region}
    readings = {0: [read(0), read(0, occurrence=1)], 1: [read(1)]}
    first, second = judge([max_memory(state=408, **narrowing)], WORLD, readings)
    assert (first.kind, second.kind) == ("met", "unmeasured")
    assert second.detail == (
        "rank 1 recorded no region 'step' #1, which rank 0 did; open it there too, or narrow the "
        "marker with rank="
    )


def test_a_rank_that_opened_no_region_where_another_did_fails_once() -> None:
    readings = {0: [read(0, "test", implicit=True)], 1: [read(1)]}
    verdict = one(max_memory(state=408), readings)
    assert (verdict.kind, verdict.region) == ("unmeasured", "step")
    assert verdict.detail.startswith("rank 0 recorded no region 'step' #0, which rank 1 did")


def test_a_rank_without_any_reading_fails() -> None:
    verdict = one(max_memory(state=408), {0: [read(0)]})
    assert verdict.kind == "unmeasured"
    assert verdict.detail.startswith("rank 1 recorded no region 'step' #0, which rank 0 did")


# What was not watched, and what was zero


@pytest.mark.parametrize("function", [max_memory, memory])
def test_an_unwatched_optimizer_fails(function: Any) -> None:
    readings = everywhere(state={**FULL, "optimizer": None})
    for argument in ("optimizer", "state"):
        verdict = one(function(**{argument: 208}), readings)
        assert verdict.kind == "unmeasured"
        assert verdict.detail == (
            "ranks 0-1: no optimizer was watched, so optimizer can't be known; pass the optimizer "
            "to shardcheck.measure(...)"
        )
    assert one(function(params=100), readings).kind == "met"


@pytest.mark.parametrize("size", [0, 1])
def test_what_was_not_watched_is_not_zero(size: int) -> None:
    for argument in ("params", "grads", "optimizer", "buffers", "state"):
        verdict = one(max_memory(**{argument: size}), everywhere(state={}))
        assert verdict.kind == "unmeasured"


def test_an_unwatched_module_is_named() -> None:
    verdict = one(max_memory(state=500), everywhere(state={"optimizer": 200}))
    assert verdict.detail == (
        "ranks 0-1: no module was watched, so params, grads, buffers can't be known; pass the "
        "module to shardcheck.measure(...)"
    )


def test_one_rank_that_watched_nothing_is_named() -> None:
    verdict = one(max_memory(params=100), {0: [read(0)], 1: [read(1, state={})]})
    assert verdict.kind == "unmeasured"
    assert verdict.detail.startswith("rank 1: no module was watched, so params can't be known")


def test_a_body_without_a_region_says_where_to_open_one() -> None:
    verdict = one(max_memory(state=1), everywhere(state={}, region="test", implicit=True))
    assert verdict.kind == "unmeasured"
    assert "put the step inside `with shardcheck.measure(model, optimizer):`" in verdict.detail


def test_a_body_that_watched_is_judged() -> None:
    readings = everywhere(region="test", implicit=True)
    assert one(max_memory(state=408), readings).kind == "met"
    assert one(max_memory(state=407), readings).kind == "crossed"


NOTHING = {"params": 0, "grads": 0, "optimizer": 0, "buffers": 0}


@pytest.mark.parametrize("argument", ["params", "grads", "optimizer", "buffers", "state"])
def test_a_ceiling_above_nothing_but_zeros_fails(argument: str) -> None:
    verdict = one(max_memory(**{argument: 1}), everywhere(state=NOTHING))
    assert verdict.kind == "unmeasured"
    assert f"{argument} was 0 on every judged rank" in verdict.detail
    assert f"write {argument}=0 to mean zero" in verdict.detail


@pytest.mark.parametrize("function", [max_memory, memory])
def test_zero_can_be_claimed(function: Any) -> None:
    assert one(function(grads=0), everywhere(state=NOTHING)).kind == "met"
    assert one(function(grads=0), everywhere()).kind != "met"


def test_an_exact_value_that_measured_zero_is_different_and_not_unmeasured() -> None:
    assert one(memory(grads=1), everywhere(state=NOTHING)).kind == "different"


def test_one_rank_that_holds_something_is_enough() -> None:
    readings = {0: [read(0, state=NOTHING)], 1: [read(1)]}
    assert one(max_memory(grads=100), readings).kind == "met"
    assert one(max_memory(grads=100, rank=0), readings).kind == "unmeasured"


def test_a_region_is_looked_at_over_its_occurrences() -> None:
    fresh = {**FULL, "optimizer": 0}
    steps = [read(0, occurrence=0, state=fresh), read(0, occurrence=1)]
    spec = WorldSpec(size=1)
    kinds = [verdict.kind for verdict in judge([max_memory(optimizer=200)], spec, {0: steps})]
    assert kinds == ["met", "met"]
    apart = [read(0, "build", state=fresh), read(0, "step")]
    kinds = [verdict.kind for verdict in judge([max_memory(optimizer=200)], spec, {0: apart})]
    assert kinds == ["unmeasured", "met"]


# Devices


def offloaded(rank: int) -> Reading:
    held = MemoryReading(
        device="cuda:0",
        by_device={"cuda:0": StateBytes(params=100, grads=50), "cpu": StateBytes(optimizer=200)},
    )
    return Reading(rank=rank, region="step", memory=held)


@pytest.mark.parametrize(
    ("device", "argument", "size"),
    [
        (None, "params", 100),
        ("cuda", "params", 100),
        ("cuda:0", "params", 100),
        ("cpu", "params", 0),
        ("cpu", "optimizer", 200),
        (None, "optimizer", 0),
        ("cuda:1", "grads", 0),
    ],
)
def test_device_narrows(device: str | None, argument: str, size: int) -> None:
    narrowing = {} if device is None else {"device": device}
    readings = {rank: [offloaded(rank)] for rank in range(2)}
    assert one(memory(**{argument: size}, **narrowing), readings).kind == "met"
    assert one(memory(**{argument: size + 1}, **narrowing), readings).kind == "different"


def test_a_ceiling_on_a_device_that_holds_nothing_fails() -> None:
    readings = {rank: [offloaded(rank)] for rank in range(2)}
    assert one(max_memory(optimizer=200, device="cuda"), readings).kind == "unmeasured"


# Worlds


def test_values_and_world_sizes_are_those_of_the_world() -> None:
    expectations = [max_memory(state={2: 408, 4: 407}), max_memory(grads=1, world_size=4)]
    assert [v.kind for v in judge(expectations, WORLD, everywhere())] == ["met"]
    four = judge(expectations, WorldSpec(size=4), everywhere(4))
    assert [v.kind for v in four] == ["crossed", "crossed"]
    assert four[1].narrowing == "world_size=4"


# Readings that somebody chose


def given(expectation: Any, *readings: Reading, spec: WorldSpec = WORLD) -> list[Any]:
    by_rank = {reading.rank: [reading] for reading in readings}
    return [(verdict.kind, verdict.detail) for verdict in judge_given([expectation], spec, by_rank)]


def test_a_chosen_reading_is_judged_alone() -> None:
    assert given(max_memory(state=408), read(1)) == [("met", "")]
    assert given(max_memory(state=407), read(1)) == [("crossed", "")]


def test_a_chosen_reading_may_be_nested() -> None:
    assert given(max_memory(state=407), read(1, outermost=False)) == [("crossed", "")]


def test_all_chosen_readings_are_judged() -> None:
    (verdict,) = judge_given([memory(state=408)], MESH, {0: [read(0)], 3: [read(3)]})
    assert [figure.rank for figure in verdict.figures] == [0, 3]
    assert given(memory(state=408), read(0), read(1, state={**FULL, "grads": 0})) == [
        ("different", "")
    ]


def test_a_rank_that_a_check_is_not_about_has_no_verdict() -> None:
    assert given(max_memory(state=407, rank=0), read(1)) == []
    assert given(max_memory(state=407, rank=-1), read(1)) == [("crossed", "")]


def test_a_check_of_a_rank_that_does_not_exist_fails() -> None:
    assert given(max_memory(state=408, rank=2), read(1)) == [
        ("unmatched", "rank 2 is not in this world of ranks 0-1")
    ]


def test_a_check_of_another_region_fails() -> None:
    ((kind, detail),) = given(max_memory(state=408, region="stpe"), read(1))
    assert kind == "unmatched"
    assert detail.endswith("(did you mean 'step'?); there were 'step' (rank 1)")


def test_a_check_of_what_was_not_watched_fails() -> None:
    ((kind, _),) = given(max_memory(state=408), read(1, state={**FULL, "optimizer": None}))
    assert kind == "unmeasured"
