"""Records → the table in the terminal."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from pytest_shardcheck.reports.figures import Figures, RegionLine, is_near, region_lines
from pytest_shardcheck.vocabulary.ranks import fold_numbers, fold_ranks
from pytest_shardcheck.vocabulary.readings import CATEGORIES
from pytest_shardcheck.vocabulary.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_shardcheck.vocabulary.records import WorldRecord

Colour = Literal["", "red", "yellow", "green", "bold"]
# The parts of a line, each with pytest's name of its colour.
Line: TypeAlias = tuple[tuple[str, Colour], ...]

_WORDS: Final = ("region", "ranks")
_REST: Final = ("state", "live", "peak", "ceiling", "calls", "wire", "saved")
_ALL: Final = (*CATEGORIES, *_REST)
_GAP: Final = "  "
_WORST: Final = "*"
_UNBROKEN: Final = "\xa0"  # a space at which no line is broken
_BAD: Final = ("failed", "error")


def table(records: Sequence[WorldRecord], width: int) -> list[Line]:
    """Return the lines of the table; none where nothing was measured.

    Each test has a line with its name, above those of its regions. Where `width` columns don't
    hold all figures to the byte, sizes are rounded; where that is not enough the categories of
    state are left out; then regions and ranks stand above their figures; in the end each region is
    a sentence. Columns that nobody measured are left out. Equal ranks share a line. Where the lines
    of one region differ, a star marks the worst ranks. State on another device than the rank's has
    a line of its own.
    """
    measured = [(record, its) for record in records if (its := region_lines(record))]
    if not measured:
        return []
    everything = [line for _, its in measured for line in its]
    layout = _fitting(everything, width)
    lines: list[Line] = [] if layout is None else [layout.header()]
    for record, its in measured:
        lines.append(_title(record))
        for line in its:
            lines += _sentence(line, width) if layout is None else layout.laid_out(line)
    return lines


def _title(record: WorldRecord) -> Line:
    if record.outcome == "passed":
        return ((record.nodeid, ""),)
    colour: Colour = "red" if record.outcome in _BAD else "yellow"
    return ((record.nodeid, ""), (f" {record.outcome.upper()}", colour))


def _fitting(lines: Sequence[RegionLine], width: int) -> _Layout | None:
    """Return the layout that says the most and fits; None where none does."""
    seen = [name for name in _ALL if any(_has(line.figures, name) for line in lines)]
    main = [name for name in seen if name not in CATEGORIES]
    layouts = (
        _Layout.of(lines, (*_WORDS, *seen), exact=True),
        _Layout.of(lines, (*_WORDS, *seen), exact=False),
        _Layout.of(lines, (*_WORDS, *main), exact=False),
        _Layout.of(lines, main, exact=False),
    )
    return next((layout for layout in layouts if layout.width <= width), None)


def _has(figures: Figures, name: str) -> bool:
    return getattr(figures, name) is not None


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns, and how wide they are; without words those stand in a line of their own."""

    names: tuple[str, ...]
    exact: bool
    widths: tuple[int, ...]

    @classmethod
    def of(cls, lines: Sequence[RegionLine], names: Sequence[str], *, exact: bool) -> _Layout:
        rows = [names, *([_text(line, name, exact=exact) for name in names] for line in lines)]
        widths = tuple(max(map(len, column)) for column in zip(*rows, strict=True))
        return cls(tuple(names), exact, widths)

    @property
    def width(self) -> int:
        return sum(self.widths) + len(_GAP) * len(self.widths)

    def header(self) -> Line:
        return self._joined(self.names, {})

    def laid_out(self, line: RegionLine) -> list[Line]:
        colours = {"ranks": _colour_of_ranks(line), "ceiling": _colour_of_ceiling(line.figures)}
        row = self._joined([_text(line, name, exact=self.exact) for name in self.names], colours)
        stacked = _WORDS[0] not in self.names
        return [((f"{_GAP}{_where(line)}", _colour_of_ranks(line)),), row] if stacked else [row]

    def _joined(self, cells: Sequence[str], colours: Mapping[str, Colour]) -> Line:
        """Align words to the left and figures to the right; nothing but cells has a colour."""
        parts: list[tuple[str, Colour]] = []
        for name, cell, width in zip(self.names, cells, self.widths, strict=True):
            space = " " * (width - len(cell))
            before, after = (_GAP, space) if name in _WORDS else (_GAP + space, "")
            parts += [(before, ""), (cell, colours.get(name, "")), (after, "")]
        return tuple(part for part in parts if part[0])


def _text(line: RegionLine, name: str, *, exact: bool) -> str:
    if name == "region":
        return line.region
    if name == "ranks":
        return fold_numbers(line.ranks) + _WORST * line.worst
    return _cell(line.figures, name, exact=exact)


def _where(line: RegionLine) -> str:
    return f"{line.region}, {fold_ranks(line.ranks)}{_WORST * line.worst}"


def _cell(figures: Figures, name: str, *, exact: bool) -> str:
    amount = getattr(figures, name)
    if amount is None:
        return "-"
    if name == "ceiling":
        return f"{percent(figures)} of {amount:,}" if exact else percent(figures)
    return f"{amount:,}" if exact or name == "calls" else format_size(amount)


def percent(figures: Figures) -> str:
    """Write how much of its ceiling a peak reaches; 100.0 % is at it, and never beyond."""
    peak, ceiling = figures.peak or 0, figures.ceiling or 0
    if not ceiling:
        return "100.0 %" if not peak else "more"
    tenths = 1000 * peak // ceiling if peak <= ceiling else -(-1000 * peak // ceiling)
    return f"{tenths / 10:.1f} %"


def _colour_of_ranks(line: RegionLine) -> Colour:
    return "bold" if line.worst else ""


def _colour_of_ceiling(figures: Figures) -> Colour:
    if figures.ceiling is None or figures.peak is None:
        return ""
    if figures.peak > figures.ceiling:
        return "red"
    return "yellow" if is_near(figures.peak, figures.ceiling) else "green"


def _sentence(line: RegionLine, width: int) -> list[Line]:
    """Write a region's figures one after the other, for a terminal that holds no columns."""
    figures = [
        f"{name} {_cell(line.figures, name, exact=False)}".replace(" ", _UNBROKEN)
        for name in _REST
        if _has(line.figures, name)
    ]
    text = f"{_where(line)}: {', '.join(figures)}"
    wrapped = textwrap.wrap(text, max(width, 20), initial_indent=_GAP, subsequent_indent=2 * _GAP)
    lines = [part.replace(_UNBROKEN, " ") for part in wrapped]
    return [((part, _colour_of_ceiling(line.figures) if "%" in part else ""),) for part in lines]
