"""Rows of the tables in docs/systems: pure functions from all ranks' readings to Markdown."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pytest_shardcheck import Reading

PAGES = Path(__file__).parents[3] / "docs" / "systems"
EQUALITY = PAGES.parent / "simulated-equality.md"
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


EQUAL_HEAD = [
    "| system | world | state | saved | calls | log | live | peak | simulated | its peak | |",
    "|---|---|---|---|---|---|---|---|---|---|---|",
]


def equal_cells(name: str, readings: Sequence[Reading]) -> list[str]:
    """Return the cells that are the same in a real and in a simulated world.

    The log is that of all ranks in order: of each call what, over which ranks, how much of what
    shape, in which phase and module; as the beginning of its hash.
    """
    logs = [
        [
            (
                c.operation,
                c.ranks,
                c.dtype,
                c.shapes,
                c.bytes,
                c.wire_bytes,
                c.peer,
                c.phase,
                c.module,
            )
            for c in reading.collectives.calls
        ]
        for reading in readings
    ]
    return [
        name,
        str(len(readings)),
        _range([reading.memory.state for reading in readings]),
        _range([reading.saved.bytes for reading in readings]),
        _range([len(reading.collectives.calls) for reading in readings]),
        hashlib.sha256(repr(logs).encode()).hexdigest()[:8],
    ]


def live_cells(readings: Sequence[Reading]) -> list[str]:
    """Return live bytes at the end and the peak."""
    return [
        _range([reading.memory.live for reading in readings]),
        _range([reading.memory.peak for reading in readings]),
    ]


def equal_row(name: str, size: int) -> list[str]:
    """Return the cells of a system's row in docs/simulated-equality.md."""
    rows = [line[2:].split(" | ") for line in EQUALITY.read_text().splitlines() if line[:2] == "| "]
    found = [cells for cells in rows if cells[:2] == [name, str(size)]]
    assert len(found) == 1, f"{len(found)} rows of {name!r} at {size} in {EQUALITY.name}"
    return found[0]


def filled(page: str, rows: Iterable[str], head: Sequence[str] = HEAD) -> str:
    """Return a page with these rows between the lines that mark its table."""
    before, marker, rest = page.partition("<!-- table: ")
    name, _, rest = rest.partition(" -->")
    _, end, after = rest.partition("<!-- end -->")
    assert marker, "no table is marked"
    assert end, "the table has no end"
    table = "\n".join([*head, *rows])
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
