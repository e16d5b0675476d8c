"""The text of a failure, whole: what was expected, what was seen, what to do next."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pytest_shardcheck.expectations import judge, max_memory, memory
from pytest_shardcheck.reports import explain
from pytest_shardcheck.vocabulary import MemoryReading, Reading, StateBytes, WorldSpec, parse_size

WORLD = WorldSpec(size=4)
DDP = {"params": 2_105_344, "grads": 2_105_344, "optimizer": 4_210_752, "buffers": 0}


def read(rank: int, occurrence: int = 0, **state: Any) -> Reading:
    held = MemoryReading(device="cpu", by_device={"cpu": StateBytes(**{**DDP, **state})})
    return Reading(rank=rank, region="step", occurrence=occurrence, memory=held)


def everywhere(**state: Any) -> dict[int, list[Reading]]:
    return {rank: [read(rank, **state)] for rank in range(4)}


def text(expectation: Any, readings: Any) -> str:
    return explain(judge([expectation], WORLD, readings), WORLD)


def test_nothing_is_said_of_what_is_met() -> None:
    assert text(max_memory(state="8.43 MB"), everywhere()) == ""


def test_a_crossed_ceiling() -> None:
    readings = {**everywhere(), 2: [read(2, grads=0)]}
    assert text(max_memory(state="7 MB", region="step"), readings).splitlines() == [
        (
            "max_memory(state, region='step'): the ceiling of 7,000,000 B (7.0 MB) was crossed in "
            "region 'step' at world4"
        ),
        "  ranks 0-1, 3: 8,421,440 B (8.4 MB), 1,421,440 B (20.3 %) above",
        "    params 2,105,344 B, grads 2,105,344 B, optimizer 4,210,752 B, buffers 0 B",
        "  rank 2: 6,316,096 B (6.3 MB), 683,904 B (9.8 %) below",
        "    params 2,105,344 B, grads 0 B, optimizer 4,210,752 B, buffers 0 B",
        '  a ceiling that passes at world size 4: state="8.43 MB"',
    ]


def test_a_ceiling_crossed_by_a_byte() -> None:
    lines = text(max_memory(params=2_105_343), everywhere(optimizer=None)).splitlines()
    assert lines[1] == "  ranks 0-3: 2,105,344 B (2.1 MB), 1 B (less than 0.1 %) above"
    assert lines[2].endswith("optimizer not watched, buffers 0 B")


def test_parameters_of_the_optimizers_own_are_named() -> None:
    lines = text(memory(optimizer=0), everywhere(own_params=2_105_344)).splitlines()
    assert lines[3] == (
        "    of optimizer, 2,105,344 B are parameters that no watched module has: master copies, "
        "or an optimizer that was built before its model was sharded"
    )


def test_a_ceiling_of_zero_has_no_percent() -> None:
    lines = text(max_memory(buffers=0), everywhere(buffers=8)).splitlines()
    assert lines[0].startswith("max_memory(buffers): the ceiling of 0 B was crossed")
    assert lines[1] == "  ranks 0-3: 8 B, 8 B above"


def test_the_printed_ceiling_passes_when_pasted_back() -> None:
    readings = {rank: [read(rank, 0, grads=7), read(rank, 1, grads=9_999)] for rank in range(4)}
    message = text(max_memory(grads=6), readings)
    printed = set(re.findall(r'grads="([^"]+)"', message))
    assert printed == {"10 kB"}
    assert parse_size("10 kB") >= 9_999
    assert text(max_memory(grads=printed.pop()), readings) == ""


def test_a_different_value() -> None:
    assert text(memory(grads=2_105_345), everywhere()).splitlines() == [
        (
            "memory(grads): 2,105,345 B (2.1 MB) was expected and not measured in region 'step' at "
            "world4"
        ),
        "  ranks 0-3: 2,105,344 B (2.1 MB), 1 B (less than 0.1 %) below",
        "    params 2,105,344 B, grads 2,105,344 B, optimizer 4,210,752 B, buffers 0 B",
        "  the value that passes at world size 4: grads=2_105_344",
    ]


def test_a_different_value_on_some_ranks() -> None:
    readings = {**everywhere(), 3: [read(3, grads=1000)]}
    message = text(memory(grads=2_105_344, tolerance=10), readings)
    assert "2,105,344 B (2.1 MB) ± 10 B was expected" in message
    assert "ranks 0-2: 2,105,344 B (2.1 MB), as expected" in message
    assert message.endswith(
        '  the figures differ; narrow by rank= or region=, or use max_memory(grads="2.11 MB")'
    )


def test_equal_occurrences_are_folded() -> None:
    readings = {rank: [read(rank, occurrence) for occurrence in range(5)] for rank in range(4)}
    message = text(max_memory(grads=5), readings)
    assert "in region 'step' #0-4 at world4" in message
    assert message.count("ceiling of") == 1


def test_only_the_failing_occurrences_are_named() -> None:
    readings = {
        rank: [read(rank, occurrence, grads=grads) for occurrence, grads in enumerate((4, 6, 5))]
        for rank in range(4)
    }
    assert "in region 'step' #1 at world4" in text(max_memory(grads=5), readings)


@pytest.mark.parametrize("mesh", [(), (("dp", 2), ("tp", 2))])
def test_the_world_is_named_by_its_id(mesh: tuple[tuple[str, int], ...]) -> None:
    spec = WorldSpec(size=4, named_axes=mesh)
    message = explain(judge([max_memory(grads=5)], spec, everywhere()), spec)
    assert f"at {spec.id}\n" in message


def test_what_is_unmeasured() -> None:
    readings = {**everywhere(), 1: [read(1, optimizer=None)]}
    assert text(max_memory(optimizer="1 TB"), readings) == (
        "max_memory(optimizer) is unmeasured in region 'step' at world4: rank 1: no optimizer was "
        "watched, so optimizer can't be known; pass the optimizer to shardcheck.measure(...)."
    )


def test_what_is_unmatched() -> None:
    assert text(max_memory(state="1 TB", region="stpe"), everywhere()) == (
        "max_memory(state, region='stpe') matched nothing at world4: the judged ranks opened no "
        "region 'stpe' (did you mean 'step'?); there were 'step' (ranks 0-3)."
    )


def test_every_unmet_verdict_is_explained() -> None:
    message = text(max_memory(params=1, grads=2_105_344, optimizer=2), everywhere())
    assert [line.split(":")[0] for line in message.splitlines() if line.startswith("max_")] == [
        "max_memory(params)",
        "max_memory(optimizer)",
    ]
