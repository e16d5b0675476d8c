"""What the session says of its worlds at the end; readings travel on reports, as under xdist."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.reports import WorldRow, table
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.specs import WorldSpec

if TYPE_CHECKING:
    import pytest

_ATTRIBUTE: Final = "shardcheck"


def attach(
    report: pytest.TestReport, spec: WorldSpec, readings: Mapping[int, Sequence[Reading]]
) -> None:
    """Put a world's readings on its report as plain data, which xdist can send."""
    data = {
        "spec": spec.to_json(),
        "readings": [reading.to_json() for its in readings.values() for reading in its],
    }
    setattr(report, _ATTRIBUTE, data)


class Summary:
    """Counts worlds and keeps what they measured."""

    def __init__(self) -> None:
        """Start with no world."""
        self._worlds = 0
        self._ranks = 0
        self._rows: list[WorldRow] = []

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a report, if it is a world's."""
        data: Mapping[str, Any] | None = getattr(report, _ATTRIBUTE, None)
        if data is None:
            return
        self._worlds += 1
        self._ranks += WorldSpec.from_json(data["spec"]).size
        readings: dict[int, list[Reading]] = {}
        for reading in map(Reading.from_json, data["readings"]):
            readings.setdefault(reading.rank, []).append(reading)
        if readings:
            self._rows.append(WorldRow(nodeid=report.nodeid, readings=readings))

    def write(
        self,
        terminal: pytest.TerminalReporter,
        *,
        with_table: bool,
        spawn_reasons: Mapping[str, str],
    ) -> None:
        """Write the table where it is asked for, and one line where there was any world."""
        if with_table:
            self._write_table(terminal)
        for path, reason in spawn_reasons.items():
            terminal.write_line(f"shardcheck: ranks of {path} were spawned, not forked: {reason}")
        if self._worlds:
            terminal.write_line(
                f"shardcheck: {_count(self._worlds, 'world')}, {_count(self._ranks, 'rank')}"
            )

    def _write_table(self, terminal: pytest.TerminalReporter) -> None:
        # The order in which tests ran is chance under xdist and randomly.
        rows = sorted(self._rows, key=lambda row: row.nodeid)
        lines = table(rows, terminal.config.get_terminal_writer().fullwidth)
        if lines:
            terminal.section("shardcheck: bytes at rest per rank")
        for line in lines:
            terminal.write_line(line)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
