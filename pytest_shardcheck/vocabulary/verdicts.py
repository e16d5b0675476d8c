"""An expectation held against the readings of all ranks, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from pytest_shardcheck.vocabulary.collectives import CollectivesReading
from pytest_shardcheck.vocabulary.memory import LiveBytes, StateBytes
from pytest_shardcheck.vocabulary.saved import SavedReading

Unit = Literal["bytes", "calls", "tensors"]
# What a figure is made of.
Breakdown: TypeAlias = StateBytes | LiveBytes | CollectivesReading | SavedReading | None
Kind = Literal["met", "crossed", "different", "unmeasured", "unmatched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigure:
    """Hold one rank's figure beside what was expected of it; None was not measured."""

    rank: int
    measured: int | None
    expected: int
    breakdown: Breakdown = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Hold what became of one argument of one marker in one occurrence of a region.

    Figures and tolerance are in `unit`.

    `kind` is "met"; "crossed" (above the ceiling); "different" (from an exact value, by more than
    `tolerance`); "unmeasured" (there is nothing to judge) or "unmatched" (a narrowing chose
    nothing), for which `detail` says what there was and what to do. `narrowing` is as the marker
    wrote it, "" where it wrote none.
    """

    marker: str
    argument: str
    kind: Kind
    region: str | None = None
    occurrence: int = 0
    figures: tuple[RankFigure, ...] = ()
    tolerance: int = 0
    unit: Unit = "bytes"
    detail: str = ""
    narrowing: str = ""

    @property
    def met(self) -> bool:
        """Return whether the expectation holds."""
        return self.kind == "met"
