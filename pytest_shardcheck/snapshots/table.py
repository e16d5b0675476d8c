"""Mismatches → the text of a failure. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, TypeVar

from pytest_shardcheck.snapshots.compare import (
    CallsDifference,
    Difference,
    Mismatch,
    Sizes,
    is_number,
)
from pytest_shardcheck.snapshots.figures import group_label
from pytest_shardcheck.vocabulary.ranks import fold_numbers, fold_ranks
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.units import counted, format_bytes

_T = TypeVar("_T", Difference, CallsDifference)
Readings = Mapping[int, Sequence[Reading]]

_HEADER: Final = ("ranks", "what", "recorded", "now", "difference", "percent")
_WORDS: Final = 2  # the first columns are words, aligned to the left; the others are figures
_MOST_ROWS: Final = 40
_MOST_NAMED: Final = 4
_LONGEST_VALUE: Final = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Say where a snapshot is recorded (a path from rootdir), and which test records it."""

    file: str
    nodeid: str


def explain(
    mismatches: Sequence[Mismatch], place: Place, torch: tuple[str, str], readings: Readings
) -> str:
    """Say what is not as recorded, of which ranks and by how much, and how to record it.

    Args:
        mismatches: What differs; at least one.
        place: Where the recording is.
        torch: The version that recorded it, and the one that ran now.
        readings: Of each rank, with the calls that may be new.
    """
    lines: list[str] = []
    for mismatch in mismatches:
        lines.append(_title(mismatch, place.file))
        lines += [f"  {line}" for line in _body(mismatch, readings)]
    before, now = torch
    differs = f"{before}, this is torch {now}" if before != now else f"{before}, as now"
    lines.append(f"recorded with torch {differs}")
    lines.append(_advice(place, "If this is meant, record it"))
    return "\n".join(lines)


def explain_missing(names: Sequence[str], place: Place) -> str:
    """Say that nothing is recorded yet, and how to record it."""
    called = ", ".join(map(repr, names))
    title = f"shardcheck.snapshot({called}): nothing is recorded in {place.file}"
    return f"{title}\n{_advice(place, 'Record it')}"


def _advice(place: Place, why: str) -> str:
    return f"{why}: python -m pytest {shlex.quote(place.nodeid)} --snapshot-update"


def _title(mismatch: Mismatch, file: str) -> str:
    start = f"shardcheck.snapshot({mismatch.name!r}): "
    if mismatch.untaken:
        return f"{start}it is recorded in {file}, and no rank took it"
    if mismatch.unrecorded:
        return f"{start}it is not recorded in {file}, which has other snapshots of this test"
    if mismatch.region is None:
        return f"{start}the value is not as recorded in {file}"
    number = f" #{mismatch.occurrence}" if mismatch.occurrence else ""
    return f"{start}region {mismatch.region!r}{number} is not as recorded in {file}"


def _body(mismatch: Mismatch, readings: Readings) -> Iterator[str]:
    if mismatch.missing_ranks:
        yield f"{fold_ranks(mismatch.missing_ranks)}: recorded, and took no such snapshot now"
    if mismatch.new_ranks:
        yield f"{fold_ranks(mismatch.new_ranks)}: took the snapshot, and have no recording"
    rows = [_row(difference, ranks) for difference, ranks in _folded(mismatch.differences)]
    if rows:
        yield from _laid_out(rows[:_MOST_ROWS])
    if len(rows) > _MOST_ROWS:
        yield f"... and {len(rows) - _MOST_ROWS} more"
    for calls, ranks in _folded(mismatch.calls):
        yield from _calls_lines(replace(calls, rank=ranks[0]), ranks, mismatch, readings)


def _folded(things: Iterable[_T]) -> list[tuple[_T, list[int]]]:
    """Group what is equal on several ranks; what is of one path stands together."""
    folded: list[tuple[_T, list[int]]] = []
    for thing in things:
        alike = replace(thing, rank=0)
        for known, ranks in folded:
            if known == alike:
                ranks.append(thing.rank)
                break
        else:
            folded.append((alike, [thing.rank]))
    places = {_place(thing): at for at, (thing, _) in reversed(list(enumerate(folded)))}
    return sorted(folded, key=lambda entry: places[_place(entry[0])])


def _place(thing: Difference | CallsDifference) -> tuple[str, ...]:
    if isinstance(thing, Difference):
        return thing.path
    return (thing.group, thing.operation, thing.phase)


def _row(difference: Difference, ranks: Iterable[int]) -> tuple[str, ...]:
    recorded, now = difference.recorded, difference.now
    apart = percent = "-"
    if is_number(recorded) and is_number(now):
        apart = _number(now - recorded, "+,")
        percent = _percent((now - recorded) / abs(recorded)) if recorded else "-"
    what = ".".join(difference.path).replace(".[", "[") or "value"
    return (fold_numbers(ranks), what, _value(recorded), _value(now), apart, percent)


def _percent(share: float) -> str:
    # What rounds to nothing is still a difference.
    return f"{100 * share:+.1f} %" if abs(share) >= 0.0005 or not share else f"{100 * share:+.1g} %"


def _value(value: Any) -> str:
    if is_number(value):
        return _number(value, ",")
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def _number(value: float, form: str) -> str:
    # The shortest text that is this float: two that differ read differently.
    if isinstance(value, int):
        return format(value, form)
    return f"{value:+}" if form.startswith("+") else repr(value)


def _laid_out(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    rows = [_HEADER, *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        words = map(str.ljust, row[:_WORDS], widths[:_WORDS])
        figures = map(str.rjust, row[_WORDS:], widths[_WORDS:])
        yield "  ".join((*words, *figures)).rstrip()


def _calls_lines(
    difference: CallsDifference, ranks: Iterable[int], mismatch: Mismatch, readings: Readings
) -> Iterator[str]:
    where = f"{difference.operation} over {difference.group} in {difference.phase}"
    for size, modules in _first(difference.gone):
        what = f"{_times(len(modules))} of {format_bytes(size)}"
        yield f"gone on {fold_ranks(ranks)}: {where}: {what}{_by(modules)}"
    for size, modules in _first(difference.new):
        what = f"{_times(len(modules))} of {format_bytes(size)}"
        lines = _lines_of(difference, size, modules, mismatch, readings)
        at = f" at {_listed(lines)}" if lines else ""
        yield f"new on {fold_ranks(ranks)}: {where}: {what}{_by(modules)}{at}"
    for word, sizes in (("gone", difference.gone), ("new", difference.new)):
        if len(sizes) > _MOST_NAMED:
            yield f"{word} on {fold_ranks(ranks)}: {where}: {len(sizes) - _MOST_NAMED} more sizes"


def _first(sizes: Sizes) -> Iterable[tuple[int, Sequence[str]]]:
    return islice(sizes.items(), _MOST_NAMED)


def _lines_of(
    difference: CallsDifference,
    size: int,
    modules: Sequence[str],
    mismatch: Mismatch,
    readings: Readings,
) -> list[str]:
    """Return the user's lines of the calls of the present log that a difference is about."""
    called = (
        call
        for reading in readings.get(difference.rank, ())
        if (reading.region, reading.occurrence) == (mismatch.region, mismatch.occurrence)
        for call in reading.collectives.calls
        if (group_label(call), call.operation, call.phase)
        == (difference.group, difference.operation, difference.phase)
    )
    lines = (c.line for c in called if c.bytes == size and c.module in modules and c.line)
    return list(dict.fromkeys(lines))


def _by(modules: Sequence[str]) -> str:
    names = list(dict.fromkeys(filter(None, modules)))
    word = "modules" if len(names) > 1 else "module"
    return f" by {word} {_listed(names)}" if names else ""


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _times(count: int) -> str:
    return counted(count, "call")
