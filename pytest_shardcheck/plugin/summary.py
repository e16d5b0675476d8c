"""What the session says of its worlds at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pytest_shardcheck.plugin.records import Records, is_of_world, spec_of
from pytest_shardcheck.reports import WorldRow, table

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

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a report, if it is a world's."""
        if not is_of_world(report):
            return
        if report.when == "call":
            self._worlds += 1
            self._ranks += spec_of(report).size
        self._records.add(report)

    @property
    def records(self) -> list[WorldRecord]:
        """Return what became of each world test, by node id."""
        return self._records.all()

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
        rows = [WorldRow(nodeid=r.nodeid, readings=r.by_rank) for r in self._records.all()]
        lines = table(rows, terminal.config.get_terminal_writer().fullwidth)
        if lines:
            terminal.section("shardcheck: bytes at rest per rank")
        for line in lines:
            terminal.write_line(line)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
