"""Peaks, collectives and saved activations against readings: each way in which one is not met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_shardcheck.expectations import (
    Expectation,
    collectives,
    demands_of,
    judge,
    max_collectives,
    max_memory,
    max_saved_activations,
    memory,
    saved_activations,
)
from pytest_shardcheck.vocabulary import (
    Call,
    CollectivesReading,
    LiveBytes,
    MemoryReading,
    Reading,
    SavedBytes,
    SavedReading,
    Verdict,
    WorldSpec,
)
from pytest_shardcheck.vocabulary.demands import Ceiling, Demands

WORLD = WorldSpec(size=2)
LIVE = LiveBytes(start=100, end=120, peak=300)
BACKWARD = LiveBytes(start=150, end=110, peak=290)


def call(operation: str, group: str = "dp", size: int = 8, phase: str = "backward") -> Call:
    axes = ("world",) if group == "0" else (group,)
    return Call(
        operation=operation, group=group, axes=axes, bytes=size, wire_bytes=size // 2, phase=phase
    )


CALLS = CollectivesReading(
    calls=(
        call("all_gather", phase="forward"),
        call("all_gather", size=16),
        call("all_reduce", group="0"),
    ),
    groups=("0", "world", "dp"),
)
SAVED = SavedReading(
    packed=7,
    count=5,
    bytes=50,
    storage_bytes=64,
    packs=9,
    backward=True,
    phases={"forward": SavedBytes(packed=7, count=5, bytes=40, storage_bytes=64)},
)


def read(rank: int, **options: Any) -> Reading:
    fields: dict[str, Any] = {
        "memory": MemoryReading(live_by_device={"cpu": LIVE}, allocated_by_device={"cpu": 310}),
        "collectives": CALLS,
        "saved": SAVED,
        "live_phases": {"forward": {"cpu": LIVE}, "backward": {"cpu": BACKWARD}},
    }
    return Reading(rank=rank, region="step", **{**fields, **options})


def everywhere(**options: Any) -> dict[int, list[Reading]]:
    return {rank: [read(rank, **options)] for rank in range(2)}


def verdicts(expectation: Expectation, **options: Any) -> dict[str, Verdict]:
    found = judge([expectation], WORLD, everywhere(**options))
    return {verdict.argument: verdict for verdict in found}


def kind(expectation: Expectation, **options: Any) -> str:
    (verdict,) = verdicts(expectation, **options).values()
    return verdict.kind


@pytest.mark.parametrize(
    ("argument", "size"),
    [("peak", 300), ("live", 120), ("peak_above_start", 200), ("growth", 20), ("allocated", 310)],
)
def test_a_byte_of_memory_decides(argument: str, size: int) -> None:
    for function, kinds in (
        (max_memory, ["crossed", "met", "met"]),
        (memory, ["different", "met", "different"]),
    ):
        assert [kind(function(**{argument: size + d})) for d in (-1, 0, 1)] == kinds


def test_a_phase_has_its_own_peak() -> None:
    assert kind(memory(290, phase="backward")) == "met"
    assert kind(memory(peak_above_start=140, phase="backward")) == "met"
    (verdict,) = verdicts(max_memory(1000, phase="optimizer")).values()
    assert verdict.kind == "unmatched"
    assert verdict.detail == "ranks 0-1: no optimizer ran; the phases were 'forward', 'backward'"


def test_a_phase_that_one_rank_lacks_is_unmeasured() -> None:
    readings = everywhere()
    readings[1] = [read(1, live_phases={}, saved=None, collectives=CollectivesReading())]
    (verdict,) = judge([max_memory(1000, phase="backward")], WORLD, readings)
    assert verdict.kind == "unmeasured"
    assert verdict.detail == "rank 1: no backward ran; the phases were none"


def test_what_was_not_measured_is_never_a_zero() -> None:
    nothing = MemoryReading()
    for function in (max_memory, memory):
        for argument in ("peak", "live", "growth", "allocated", "reserved"):
            assert kind(function(**{argument: 0}), memory=nothing) == "unmeasured"


def test_a_ceiling_over_nothing_but_zeros_is_vacuous() -> None:
    nothing = MemoryReading(live_by_device={"cpu": LiveBytes(start=0, end=0, peak=0)})
    assert kind(max_memory(peak=1), memory=nothing) == "unmeasured"
    assert kind(max_memory(peak=0), memory=nothing) == "met"
    assert kind(max_memory(growth=1), memory=nothing) == "met"


def test_another_device_is_judged_by_name() -> None:
    both = MemoryReading(live_by_device={"cpu": LIVE, "cuda:0": BACKWARD})
    assert kind(memory(290, device="cuda:0"), memory=both) == "met"
    assert kind(memory(290, device="cuda"), memory=both) == "met"
    assert kind(memory(300), memory=both) == "met"


def test_collectives_are_closed() -> None:
    found = verdicts(collectives(all_gather=2))
    assert found["all_gather"].kind == "met"
    assert found["all_reduce"].kind == "different"
    assert {v.kind for name, v in found.items() if name != "all_reduce"} == {"met"}
    assert all(v.kind == "met" for v in verdicts(collectives(all_gather=2, all_reduce=1)).values())
    ignoring = verdicts(collectives(all_gather=2, ignore="all_reduce"))
    assert all(verdict.kind == "met" for verdict in ignoring.values())


@pytest.mark.parametrize("count", [1, 3])
def test_a_call_decides(count: int) -> None:
    assert verdicts(collectives(all_gather=count, all_reduce=1))["all_gather"].kind == "different"


def test_no_communication_is_a_claim() -> None:
    nothing = CollectivesReading(groups=("0", "world"))
    assert {v.kind for v in verdicts(collectives(), collectives=nothing).values()} == {"met"}
    assert verdicts(collectives())["all_gather"].kind == "different"


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        ({"count": 3}, "met"),
        ({"count": 2}, "crossed"),
        ({"bytes": 32}, "met"),
        ({"bytes": 31}, "crossed"),
        ({"wire_bytes": 15}, "crossed"),
        ({"largest": 16}, "met"),
        ({"largest": 15}, "crossed"),
        ({"largest": {"all_reduce": 8}}, "met"),
        ({"largest": {"all_reduce": 7}}, "crossed"),
        ({"bytes": {"all_gather": 24}}, "met"),
        ({"bytes": {"all_gather": 23}}, "crossed"),
        ({"all_gather": 1}, "crossed"),
    ],
)
def test_ceilings_on_calls(arguments: dict[str, Any], kinds: str) -> None:
    assert kind(max_collectives(**arguments)) == kinds


def test_a_group_and_a_phase_narrow() -> None:
    assert verdicts(collectives(all_reduce=1, group="world"))["all_gather"].kind == "met"
    in_dp = verdicts(collectives(all_gather=1, group="dp", phase="forward"))
    assert all(verdict.kind == "met" for verdict in in_dp.values())


def test_a_misspelt_group_is_unmatched_and_lists_the_groups() -> None:
    (verdict,) = verdicts(max_collectives(count=9, group="wrld")).values()
    assert verdict.kind == "unmatched"
    assert (
        "no process group 'wrld' (did you mean 'world'?); the groups were '0', 'world', 'dp'"
        in (verdict.detail)
    )


def test_a_rank_outside_of_a_group_is_not_judged() -> None:
    readings = everywhere()
    readings[1] = [read(1, collectives=CollectivesReading(groups=("0", "world")))]
    (verdict,) = judge([max_collectives(count=2, group="dp")], WORLD, readings)
    assert verdict.kind == "met"
    assert [figure.rank for figure in verdict.figures] == [0]


def test_an_unknown_operator_is_never_a_silent_zero() -> None:
    unknown = replace(CALLS, unknown=("c10d::new_op",))
    for expectation in (collectives(all_gather=2), max_collectives(count=9)):
        found = verdicts(expectation, collectives=unknown)
        assert {verdict.kind for verdict in found.values()} == {"unmeasured"}
    assert "c10d::new_op" in next(iter(found.values())).detail


@pytest.mark.parametrize(
    ("argument", "size"), [("packed", 7), ("count", 5), ("bytes", 50), ("storage_bytes", 64)]
)
def test_one_more_saved_decides(argument: str, size: int) -> None:
    given = [size - 1, size, size + 1]
    assert [kind(max_saved_activations(**{argument: g})) for g in given] == [
        "crossed",
        "met",
        "met",
    ]
    assert [kind(saved_activations(**{argument: g})) for g in given] == [
        "different",
        "met",
        "different",
    ]


def test_saved_activations_of_a_phase() -> None:
    assert kind(saved_activations(bytes=40, phase="forward")) == "met"
    assert kind(saved_activations(bytes=0, phase="backward")) == "met"


@pytest.mark.parametrize(
    "expectation", [saved_activations(count=0), max_saved_activations(bytes=0)]
)
def test_a_backward_with_nothing_packed_is_unmeasured(expectation: Expectation) -> None:
    nothing = SavedReading(backward=True)
    assert kind(expectation, saved=nothing) == "unmeasured"
    assert kind(expectation, saved=SavedReading()) == "met"
    assert kind(expectation, saved=None) == "unmeasured"
    assert kind(expectation, saved=SavedReading(unseen=("torch.func",))) == "unmeasured"


def test_a_ceiling_on_saved_activations_over_zeros_is_vacuous() -> None:
    assert kind(max_saved_activations(bytes=1), saved=SavedReading()) == "unmeasured"


def test_demands() -> None:
    expectations = [
        max_memory(peak=100, region="step"),
        memory(peak=90, tolerance="10%"),
        max_memory(allocated=5, rank=1),
        max_memory(peak=1, rank=7),
        saved_activations(count=1, rank=0),
    ]
    assert demands_of(expectations, WORLD, 0) == Demands(
        ceilings=(Ceiling(bytes=100, region="step"), Ceiling(bytes=99)),
        allocated=False,
        saved=True,
    )
    other = demands_of(expectations, WORLD, 1)
    assert other.allocated
    assert not other.saved
    assert other.ceilings_in("step", "cpu") == {"cpu": 99}
