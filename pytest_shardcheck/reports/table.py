"""Readings → the per-rank table in the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_shardcheck.vocabulary.ranks import fold_numbers
from pytest_shardcheck.vocabulary.readings import CATEGORIES, Reading
from pytest_shardcheck.vocabulary.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_HEADER = ("test", "region", "ranks", *CATEGORIES, "state")
_WORDS = 3  # the first columns are words, aligned to the left; the others are figures
_GAP = "  "
_WORST = "*"

_Sizes: TypeAlias = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRow:
    """Hold what the ranks of one test's world measured."""

    nodeid: str
    readings: Mapping[int, Sequence[Reading]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    test: str
    region: str
    ranks: str
    sizes: _Sizes
    worst: bool


def table(rows: Sequence[WorldRow], width: int) -> list[str]:
    """Return the lines of the table; none where nothing was measured.

    Sizes are to the byte where `width` columns hold them, and rounded elsewhere; a name that is
    still too long loses its start. Equal ranks share a line. Where the lines of one region differ,
    the ranks with the largest state have a star. State on another device than the rank's has a
    line of its own.
    """
    lines = [line for row in rows for line in _lines(row)]
    if not lines:
        return []
    cells = _cells(lines, lambda size: f"{size:,}")
    if _excess(_widths(cells), width) > 0:
        cells = _cells(lines, format_size)
    widths = _widths(cells)
    widths[0] = max(len(_HEADER[0]), widths[0] - max(0, _excess(widths, width)))
    return [_laid_out(row, widths) for row in cells]


def _lines(row: WorldRow) -> Iterator[_Line]:
    folded = _fold(row)
    readings = (reading for of_rank in row.readings.values() for reading in of_rank)
    repeated = {reading.region for reading in readings if reading.occurrence}
    for (region, device, sizes, ranks), occurrences in folded.items():
        states = {key[2][-1] or 0 for key in folded if key[:2] == (region, device)}
        number = f" #{fold_numbers(occurrences)}" if region in repeated else ""
        yield _Line(
            test=_without_folders(row.nodeid),
            region=f"{region}{number}{device}",
            ranks=fold_numbers(ranks),
            sizes=sizes,
            worst=len(states) > 1 and (sizes[-1] or 0) == max(states),
        )


def _without_folders(nodeid: str) -> str:
    path, colons, test = nodeid.partition("::")
    return path.rpartition("/")[2] + colons + test


def _fold(row: WorldRow) -> dict[tuple[str, str, _Sizes, tuple[int, ...]], list[int]]:
    """Map region, device, sizes and the ranks that have them to occurrences of the region."""
    ranks_of: dict[tuple[str, int, str, _Sizes], list[int]] = {}
    for rank, of_rank in sorted(row.readings.items()):
        for reading in of_rank:
            for device, sizes in _sizes_by_device(reading):
                key = (reading.region, reading.occurrence, device, sizes)
                ranks_of.setdefault(key, []).append(rank)
    folded: dict[tuple[str, str, _Sizes, tuple[int, ...]], list[int]] = {}
    for (region, occurrence, device, sizes), ranks in ranks_of.items():
        folded.setdefault((region, device, sizes, tuple(ranks)), []).append(occurrence)
    return folded


def _sizes_by_device(reading: Reading) -> Iterator[tuple[str, _Sizes]]:
    own = reading.memory.device
    for device in dict.fromkeys((own, *reading.memory.by_device)):
        state = reading.memory.on(device)
        # On its own device a rank's zero is a figure, on another it is only silence.
        if state.state or (device == own and state.state is not None):
            sizes = tuple(getattr(state, category) for category in CATEGORIES)
            yield "" if device == own else f" on {device}", (*sizes, state.state)


def _cells(lines: Sequence[_Line], write: Callable[[int], str]) -> list[tuple[str, ...]]:
    def cells_of(line: _Line) -> tuple[str, ...]:
        figures = ["-" if size is None else write(size) for size in line.sizes]
        return (line.test, line.region, line.ranks + _WORST * line.worst, *figures)

    return [_HEADER, *map(cells_of, lines)]


def _widths(cells: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _excess(widths: Sequence[int], width: int) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1) - width


def _laid_out(cells: tuple[str, ...], widths: Sequence[int]) -> str:
    name = cells[0]
    if len(name) > widths[0]:
        name = "…" + name[len(name) - widths[0] + 1 :]
    words = map(str.ljust, (name, *cells[1:_WORDS]), widths[:_WORDS])
    figures = map(str.rjust, cells[_WORDS:], widths[_WORDS:])
    return _GAP.join((*words, *figures))
