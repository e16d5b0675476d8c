"""Readings and records made by hand, for the tests of what is done with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_shardcheck.vocabulary.collectives import Call
from pytest_shardcheck.vocabulary.memory import LiveBytes
from pytest_shardcheck.vocabulary.readings import (
    CollectivesReading,
    MemoryReading,
    Reading,
    SavedReading,
    StateBytes,
)
from pytest_shardcheck.vocabulary.records import WorldRecord
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.vocabulary.verdicts import RankFigure, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

M8 = {"params": 2_105_344, "grads": 2_105_344, "optimizer": 4_210_752, "buffers": 0}
NODE = "tests/regression/test_state.py::test_ddp[world2]"


def reading(
    rank: int,
    region: str = "step",
    occurrence: int = 0,
    *,
    state: Mapping[str, int] | None = None,
    live: tuple[int, int, int] | None = None,
    calls: Mapping[str, tuple[int, int]] | None = None,
    saved: int | None = None,
    device: str = "cpu",
    **more: Any,
) -> Reading:
    """`live` is start, end, peak; `calls` map operation to number and wire bytes of each."""
    memory = MemoryReading(
        device=device,
        by_device={} if state == {} else {device: StateBytes(**(state or M8))},
        live_by_device=(
            {} if live is None else {device: LiveBytes(start=live[0], end=live[1], peak=live[2])}
        ),
    )
    issued = tuple(
        Call(operation=operation, group="default_pg", bytes=wire, wire_bytes=wire)
        for operation, (number, wire) in (calls or {}).items()
        for _ in range(number)
    )
    return Reading(
        rank=rank,
        region=region,
        occurrence=occurrence,
        memory=memory,
        collectives=CollectivesReading(calls=issued, groups=("world",)),
        saved=None if saved is None else SavedReading(bytes=saved, count=1),
        **more,
    )


def record(readings: Sequence[Reading] = (), nodeid: str = NODE, **more: Any) -> WorldRecord:
    size = max((reading.rank for reading in readings), default=1) + 1
    return WorldRecord(nodeid=nodeid, spec=WorldSpec(size=size), readings=tuple(readings), **more)


def ceiling(
    measured: Mapping[int, int], expected: int, argument: str = "peak", **more: Any
) -> Verdict:
    crossed = any(figure > expected for figure in measured.values())
    return Verdict(
        **{
            "marker": "max_memory",
            "argument": argument,
            "kind": "crossed" if crossed else "met",
            "region": "step",
            "figures": tuple(
                RankFigure(rank=rank, measured=figure, expected=expected)
                for rank, figure in measured.items()
            ),
            **more,
        }
    )
