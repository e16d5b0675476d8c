"""What became of one world test, as plain data: what reports and snapshots are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pytest_shardcheck.vocabulary.plain import Plain
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.snapshots import SnapshotRecord
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.vocabulary.verdicts import Verdict

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRecord(Plain):
    """Hold the last run of one world test.

    `outcome` is pytest's word for the whole protocol, `seconds` the time of its three phases and
    `failure` their text. `readings` are ordered by rank, and a rank's as its regions ended.
    `verdicts` are those of the markers, met ones too, without breakdowns. `snapshots` are those of
    a world that ended well, but for what they say.
    """

    nodeid: str
    spec: WorldSpec
    outcome: Outcome = "passed"
    seconds: float = 0.0
    failure: str = ""
    readings: tuple[Reading, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    snapshots: tuple[SnapshotRecord, ...] = ()

    @property
    def by_rank(self) -> dict[int, list[Reading]]:
        """Return the readings of each rank that has any."""
        found: dict[int, list[Reading]] = {}
        for reading in self.readings:
            found.setdefault(reading.rank, []).append(reading)
        return found


def without_breakdowns(verdict: Verdict) -> Verdict:
    """Return a verdict whose figures don't say what they are made of: the readings do."""
    figures = tuple(replace(figure, breakdown=None) for figure in verdict.figures)
    return replace(verdict, figures=figures)
