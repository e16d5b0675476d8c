"""Rows of the tables in docs/systems: pure functions from all ranks' readings to Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_shardcheck import Reading

PAGES = Path(__file__).parents[3] / "docs" / "systems"
HEAD = [
    "| system | world | state | live | peak | collectives | wire bytes | saved activations |",
    "|---|---|---|---|---|---|---|---|",
]


def row(name: str, readings: Sequence[Reading]) -> str:
    """Return one system's row in one world; where ranks differ, the smallest and the largest."""

    def figures(of: Callable[[Reading], int]) -> str:
        return _range([of(reading) for reading in readings])

    cells = [
        name,
        str(len(readings)),
        figures(lambda reading: reading.memory.state),
        figures(lambda reading: reading.memory.live),
        figures(lambda reading: reading.memory.peak),
        _calls(readings),
        figures(lambda reading: reading.collectives.total.wire_bytes),
        figures(lambda reading: reading.saved.bytes),
    ]
    return f"| {' | '.join(cells)} |"


def filled(page: str, rows: Iterable[str]) -> str:
    """Return a page with these rows between the lines that mark its table."""
    before, marker, rest = page.partition("<!-- table: ")
    name, _, rest = rest.partition(" -->")
    _, end, after = rest.partition("<!-- end -->")
    assert marker, "no table is marked"
    assert end, "the table has no end"
    table = "\n".join([*HEAD, *rows])
    return f"{before}{marker}{name} -->\n\n{table}\n\n{end}{after}"


def _calls(readings: Sequence[Reading]) -> str:
    names = dict.fromkeys(name for reading in readings for name in reading.collectives)
    counts = {
        name: _range([reading.collectives[name].count for reading in readings]) for name in names
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _range(figures: Sequence[int]) -> str:
    least, most = min(figures), max(figures)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
