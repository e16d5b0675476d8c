"""Readings → the per-rank table in the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_shardcheck.vocabulary.ranks import fold_numbers
from pytest_shardcheck.vocabulary.readings import CATEGORIES, Reading
from pytest_shardcheck.vocabulary.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


_HEADER = ("region", "ranks", *CATEGORIES, "state")
_WORDS = 2  # the first columns are words, aligned to the left; the others are figures
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
    region: str
    ranks: str
    sizes: _Sizes
    worst: bool


def table(rows: Sequence[WorldRow], width: int) -> list[str]:
    """Return the lines of the table; none where nothing was measured.

    Each test has a line with its name, above those of its regions. Sizes are to the byte where
    `width` columns hold them, and rounded elsewhere. Equal ranks share a line. Where the lines of
    one region differ, the ranks with the largest state have a star. State on another device than
    the rank's has a line of its own.
    """
    lines = {row.nodeid: list(_lines(row)) for row in rows}
    measured = {nodeid: its for nodeid, its in lines.items() if its}
    if not measured:
        return []
    everything = [line for its in measured.values() for line in its]
    write: Callable[[int], str] = "{:,}".format
    if _width(_widths([_HEADER, *_cells(everything, write)])) > width:
        write = format_size
    widths = _widths([_HEADER, *_cells(everything, write)])
    laid_out = [_laid_out(_HEADER, widths)]
    for nodeid, its in measured.items():
        laid_out.append(nodeid)
        laid_out += [_laid_out(cells, widths) for cells in _cells(its, write)]
    return laid_out


def _lines(row: WorldRow) -> Iterator[_Line]:
    folded = _fold(row)
    readings = (reading for of_rank in row.readings.values() for reading in of_rank)
    repeated = {reading.region for reading in readings if reading.occurrence}
    for (region, device, sizes, ranks), occurrences in folded.items():
        states = {key[2][-1] or 0 for key in folded if key[:2] == (region, device)}
        number = f" #{fold_numbers(occurrences)}" if region in repeated else ""
        yield _Line(
            region=f"{region}{number}{device}",
            ranks=fold_numbers(ranks),
            sizes=sizes,
            worst=len(states) > 1 and (sizes[-1] or 0) == max(states),
        )


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
        return (line.region, line.ranks + _WORST * line.worst, *figures)

    return [cells_of(line) for line in lines]


def _widths(cells: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * len(widths)


def _laid_out(cells: tuple[str, ...], widths: Sequence[int]) -> str:
    words = map(str.ljust, cells[:_WORDS], widths[:_WORDS])
    figures = map(str.rjust, cells[_WORDS:], widths[_WORDS:])
    return _GAP + _GAP.join((*words, *figures))
