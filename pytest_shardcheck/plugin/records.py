"""What ranks measured travels on pytest's reports as plain data, and is put together again here.

So it reaches the controller of xdist like everything else that a worker has to say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pytest

from pytest_shardcheck.reports.properties import properties
from pytest_shardcheck.vocabulary import plain
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.records import Outcome, WorldRecord, without_breakdowns
from pytest_shardcheck.vocabulary.snapshots import SnapshotRecord
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.vocabulary.verdicts import Verdict
from pytest_shardcheck.worlds.keys import SPEC

_ATTRIBUTE: Final = "shardcheck"
_TIMELINES: Final = "shardcheck_timelines"


def attach(
    report: pytest.TestReport,
    spec: WorldSpec,
    readings: Mapping[int, Sequence[Reading]],
    verdicts: Sequence[Verdict],
    snapshots: Sequence[SnapshotRecord] = (),
) -> None:
    """Put what a world measured in a phase, and what is said of it, on its report."""
    data = {
        "spec": spec.to_json(),
        "readings": [reading.to_json() for _, its in sorted(readings.items()) for reading in its],
        "verdicts": [plain.to_json(without_breakdowns(verdict)) for verdict in verdicts],
        "snapshots": [snapshot.to_json() for snapshot in snapshots],
    }
    setattr(report, _ATTRIBUTE, data)


def attach_timelines(report: pytest.TestReport, timelines: Mapping[int, str]) -> None:
    """Put packed timelines on a report, by rank, apart: they are large, and are in no record."""
    if timelines:
        setattr(report, _TIMELINES, {str(rank): packed for rank, packed in timelines.items()})


def add_properties(item: pytest.Item, readings: Mapping[int, Sequence[Reading]]) -> None:
    """Add the largest figures to a test's properties."""
    its = tuple(reading for of_rank in readings.values() for reading in of_rank)
    record = WorldRecord(nodeid=item.nodeid, spec=item.stash[SPEC], readings=its)
    ours = properties(record)
    # A test that is run again has those of its last run.
    kept = [(name, value) for name, value in item.user_properties if name not in ours]
    item.user_properties[:] = [*kept, *ours.items()]


def is_of_world(report: pytest.TestReport) -> bool:
    """Tell whether a report is a world test's."""
    return hasattr(report, _ATTRIBUTE)


def spec_of(report: pytest.TestReport) -> WorldSpec:
    """Return the world of a report that is a world test's."""
    return WorldSpec.from_json(getattr(report, _ATTRIBUTE)["spec"])


class Records:
    """The record of every world test of the session; a test that is run again replaces its own."""

    def __init__(self) -> None:
        """Start with none."""
        self._by_nodeid: dict[str, WorldRecord] = {}
        self._unfinished: set[str] = set()

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a report, if it is a world's."""
        if not is_of_world(report):
            return
        data: Mapping[str, Any] = getattr(report, _ATTRIBUTE)
        known = self._by_nodeid.get(report.nodeid)
        if known is None or report.when == "setup":
            known = WorldRecord(nodeid=report.nodeid, spec=spec_of(report))
            self._unfinished.add(report.nodeid)
        if report.when == "teardown":
            self._unfinished.discard(report.nodeid)
        self._by_nodeid[report.nodeid] = replace(
            known,
            outcome=_worse(known.outcome, _outcome(report)),
            seconds=known.seconds + report.duration,
            failure="\n".join(filter(None, (known.failure, _failure(report)))),
            readings=(*known.readings, *map(Reading.from_json, data["readings"])),
            verdicts=(
                *known.verdicts,
                *(plain.from_json(Verdict, verdict) for verdict in data["verdicts"]),
            ),
            snapshots=(
                *known.snapshots,
                *map(SnapshotRecord.from_json, data["snapshots"]),
            ),
        )

    def all(self) -> list[WorldRecord]:
        """Return them by node id: the order in which tests ran is chance under xdist.

        Of a test that was interrupted only a failure is kept: what else was heard of it so far
        looks as if it had passed.
        """
        return [
            record
            for nodeid, record in sorted(self._by_nodeid.items())
            if nodeid not in self._unfinished or record.outcome in ("failed", "error")
        ]


class Timelines:
    """The packed timelines of every world test of the session, by rank."""

    def __init__(self) -> None:
        """Start with none."""
        self._by_nodeid: dict[str, dict[int, str]] = {}

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a report; a test that is run again replaces its own."""
        if report.when == "setup":
            self._by_nodeid.pop(report.nodeid, None)
        packed: Mapping[str, str] = getattr(report, _TIMELINES, {})
        if packed:
            self._by_nodeid[report.nodeid] = {int(rank): text for rank, text in packed.items()}

    def of(self, nodeid: str) -> Mapping[int, str]:
        """Return the timelines of a test's ranks that have one."""
        return self._by_nodeid.get(nodeid, {})


def _outcome(report: pytest.TestReport) -> Outcome:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    if report.failed:
        return "failed" if report.when == "call" else "error"
    return "skipped" if report.skipped else "passed"


def _worse(one: Outcome, other: Outcome) -> Outcome:
    order: tuple[Outcome, ...] = ("passed", "xpassed", "xfailed", "skipped", "error", "failed")
    return max(one, other, key=order.index)


def _failure(report: pytest.TestReport) -> str:
    # Not `longreprtext`, which under xdist begins with the worker and its interpreter's path.
    return str(report.longrepr).strip() if report.failed else ""
