"""What the page's table and its charts need of a record, as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pytest_shardcheck.vocabulary.readings import Reading
    from pytest_shardcheck.vocabulary.records import WorldRecord
    from pytest_shardcheck.vocabulary.verdicts import Verdict

Row = dict[str, Any]
# Whose expected figures are drawn, and into which chart.
_DRAWN: Final = {
    ("memory", "peak"): "memory",
    ("max_memory", "peak"): "memory",
    ("saved_activations", "bytes"): "saved",
    ("max_saved_activations", "bytes"): "saved",
}


def row_of(record: WorldRecord) -> Row:
    """Return the figures of one test: each the largest of its ranks; None was not measured.

    State, peak and saved activations are the largest of its regions; collectives and wire bytes
    are summed over its outermost ones.
    """
    readings = record.readings
    return {
        "nodeid": record.nodeid,
        "world": record.spec.id,
        "size": record.spec.size,
        "outcome": record.outcome,
        "seconds": round(record.seconds, 3),
        "state": _largest(reading.memory.state for reading in readings),
        "peak": _largest(_peak(reading) for reading in readings),
        "use": _use(record.verdicts),
        "collectives": _largest_sum(record.by_rank, _count),
        "wire": _largest_sum(record.by_rank, _wire_bytes),
        "saved": _largest(_saved(reading) for reading in readings),
        "failure": record.failure,
        "regions": [_region(reading) for reading in readings],
        "ceilings": [line for verdict in record.verdicts for line in _ceilings(verdict)],
    }


def _region(reading: Reading) -> Row:
    return {
        "rank": reading.rank,
        "region": reading.region,
        "occurrence": reading.occurrence,
        "state": reading.memory.state,
        "live": _live(reading),
        "peak": _peak(reading),
        "collectives": _count(reading),
        "wire": _wire_bytes(reading),
        "saved": _saved(reading),
    }


def _ceilings(verdict: Verdict) -> Iterable[Row]:
    chart = _DRAWN.get((verdict.marker, verdict.argument))
    if chart is not None and verdict.region is not None and "device=" not in verdict.narrowing:
        yield {
            "chart": chart,
            "region": verdict.region,
            "occurrence": verdict.occurrence,
            "marker": verdict.marker,
            "narrowing": verdict.narrowing,
            "met": verdict.met,
            "of": {str(figure.rank): figure.expected for figure in verdict.figures},
        }


def _use(verdicts: Iterable[Verdict]) -> float | None:
    """Return how much of its tightest ceiling a test used: 1 is all of it."""
    used = [
        figure.measured / figure.expected
        for verdict in verdicts
        if verdict.marker.startswith("max_")
        for figure in verdict.figures
        if figure.measured is not None and figure.expected > 0
    ]
    return round(max(used), 4) if used else None


def _live(reading: Reading) -> int | None:
    live = reading.memory.live_on(reading.memory.device)
    return None if live is None else live.end


def _peak(reading: Reading) -> int | None:
    live = reading.memory.live_on(reading.memory.device)
    return None if live is None else live.peak


def _saved(reading: Reading) -> int | None:
    saved = reading.saved
    return saved.bytes if saved is not None and saved.measured else None


def _count(reading: Reading) -> int | None:
    # One with an operation that we don't know has no total.
    return None if reading.collectives.unknown else reading.collectives.total.count


def _wire_bytes(reading: Reading) -> int | None:
    return None if reading.collectives.unknown else reading.collectives.total.wire_bytes


def _largest(figures: Iterable[int | None]) -> int | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _largest_sum(
    by_rank: Mapping[int, Sequence[Reading]], figure: Callable[[Reading], int | None]
) -> int | None:
    sums: list[int] = []
    for readings in by_rank.values():
        figures = [figure(reading) for reading in readings if reading.outermost]
        if None in figures:
            return None
        sums.append(sum(one for one in figures if one is not None))
    return max(sums, default=None)
