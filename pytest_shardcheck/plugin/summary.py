"""What the session says of its worlds at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_shardcheck.plugin.outputs import Kept
from pytest_shardcheck.plugin.records import Records, Timelines, is_of_world, spec_of
from pytest_shardcheck.reports import table
from pytest_shardcheck.reports.figures import near_ceilings
from pytest_shardcheck.vocabulary.units import counted

if TYPE_CHECKING:
    import pytest

    from pytest_shardcheck.vocabulary.records import WorldRecord


class Summary:
    """Counts worlds and keeps what they measured."""

    def __init__(self) -> None:
        """Start with no world."""
        self._worlds = 0
        self._ranks = 0
        self._records = Records()
        self._timelines = Timelines()

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a report, if it is a world's."""
        if not is_of_world(report):
            return
        if report.when == "call":
            self._worlds += 1
            self._ranks += len(spec_of(report).running)
        self._records.add(report)
        self._timelines.add(report)

    @property
    def records(self) -> list[WorldRecord]:
        """Return what became of each world test, by node id."""
        return self._records.all()

    def kept(self, incomplete: str) -> Kept:
        """Return what files are made of; `incomplete` says why tests may be missing."""
        return Kept(
            records=self.records,
            timelines=self._timelines,
            in_short=self.in_short,
            incomplete=incomplete,
        )

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
            terminal.write_line(f"shardcheck: {self.in_short}")

    @property
    def in_short(self) -> str:
        """Return the session's worlds in one line."""
        parts = [counted(self._worlds, "world"), counted(self._ranks, "rank")]
        if near := sum(len(near_ceilings(record)) for record in self.records):
            parts.append(f"{counted(near, 'ceiling')} within 5 %")
        return ", ".join(parts)

    def _write_table(self, terminal: pytest.TerminalReporter) -> None:
        lines = table(self.records, terminal.config.get_terminal_writer().fullwidth)
        if lines:
            terminal.section("shardcheck: what each rank held and sent")
        for line in lines:
            for text, colour in line:
                terminal.write(text, **({colour: True} if colour else {}))
            terminal.line("")
