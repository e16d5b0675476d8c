"""What one rank did over a whole test: frozen, plain data. All sizes are bytes.

The axis is the operation: how many operators torch had dispatched on the rank. Ranks that do the
same work agree in it, however their clocks run. `time_ns` beside it counts from `start_ns` of the
machine's monotonic clock, which its ranks share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_shardcheck.vocabulary import plain
from pytest_shardcheck.vocabulary.collectives import Call
from pytest_shardcheck.vocabulary.memory import TensorRecord

TIMELINE_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Say that a phase begins."""

    phase: str
    at: int
    time_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionSpan:
    """Say where a region began and ended; `depth` counts the regions around it.

    `failed`: an exception ended it, so it has no reading and no `occurrence`.
    """

    region: str
    begin: int
    begin_ns: int
    end: int
    end_ns: int
    occurrence: int = 0
    depth: int = 0
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """Say when a call was issued and when it returned; `kind` is its place in `Timeline.kinds`.

    An asynchronous call returns long before its data has arrived.
    """

    kind: int
    at: int
    time_ns: int
    returned_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCurve:
    """Hold what autograd had saved, sample by sample, while regions with hooks were open."""

    at: tuple[int, ...] = ()
    time_ns: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    count: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Hold what one rank did.

    `at` and `time_ns` are those of the memory's samples. `memory` has a figure for each of them, by
    device and category (`LIVE_CATEGORIES`), and their sum is what was alive. `alive` has, by
    device, (tensor, first sample, last sample, count): which of `tensors` were among the largest
    when, and how many of them. `live_unmeasured` says why there is no memory. `left_out` counts
    what was not kept, by what it is: samples between others, and the last of many turns, calls and
    regions.
    """

    rank: int
    device: str
    start_ns: int
    operations: int = 0
    at: tuple[int, ...] = ()
    time_ns: tuple[int, ...] = ()
    memory: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    live_unmeasured: str = ""
    tensors: tuple[TensorRecord, ...] = ()
    alive: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    turns: tuple[Turn, ...] = ()
    regions: tuple[RegionSpan, ...] = ()
    kinds: tuple[Call, ...] = ()
    calls: tuple[Issued, ...] = ()
    saved: SavedCurve = field(default_factory=SavedCurve)
    left_out: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the timeline as what `json` can write, with the version of its schema."""
        return plain.to_versioned(self, TIMELINE_SCHEMA_VERSION)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        """Build the timeline that `to_json` wrote. Raises UsageError on another schema."""
        return plain.from_versioned(cls, data, TIMELINE_SCHEMA_VERSION, "timeline")
