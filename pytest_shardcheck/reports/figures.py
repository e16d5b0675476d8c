"""Records → the few figures of each region that a person looks at, equal ranks folded."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.vocabulary.ranks import fold_numbers
from pytest_shardcheck.vocabulary.readings import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pytest_shardcheck.vocabulary.readings import Reading
    from pytest_shardcheck.vocabulary.records import WorldRecord
    from pytest_shardcheck.vocabulary.verdicts import RankFigure, Verdict

# A ceiling of a phase or of another device is not one of the region's own peak.
_ELSEWHERE: Final = re.compile(r"(^|, )(phase|device)=")
_NEAR_PERCENT: Final = 95


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Hold what one rank measured in one region on one device; None was not measured.

    `calls` and `wire` are those of all collectives, `saved` the most bytes that autograd held;
    `ceiling` is the lowest that a marker sets on `peak`. All but `calls` are bytes.
    """

    params: int | None = None
    grads: int | None = None
    optimizer: int | None = None
    buffers: int | None = None
    state: int | None = None
    live: int | None = None
    peak: int | None = None
    ceiling: int | None = None
    calls: int | None = None
    wire: int | None = None
    saved: int | None = None

    @property
    def nothing(self) -> bool:
        """Tell whether there is nothing to show."""
        return self.state is None and self.peak is None and not self.calls and self.saved is None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLine:
    """Hold the figures that some ranks share in some occurrences of a region.

    `region` names occurrences where there are several, and a device that is not the rank's own.
    `worst` is whether other ranks were better: their peak is lower, or their state where no peak
    was measured.
    """

    region: str
    ranks: tuple[int, ...]
    figures: Figures
    worst: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    region: str
    device: str
    figures: Figures
    ranks: tuple[int, ...]


def region_lines(record: WorldRecord) -> list[RegionLine]:
    """Return the lines of a test's regions; equal ranks, and equal occurrences, share one."""
    occurrences: dict[_Place, list[int]] = {}
    for (region, occurrence, device, figures), ranks in _ranks_of(record).items():
        place = _Place(region, device, figures, tuple(ranks))
        occurrences.setdefault(place, []).append(occurrence)
    repeated = {reading.region for reading in record.readings if reading.occurrence}
    return [
        RegionLine(
            region=f"{label(place.region, numbers if place.region in repeated else ())}"
            f"{place.device}",
            ranks=place.ranks,
            figures=place.figures,
            worst=_is_worst(place, occurrences),
        )
        for place, numbers in occurrences.items()
    ]


def label(region: str, occurrences: Sequence[int]) -> str:
    """Write a region's name in a line: "step #1-3"; it may have been given any letters."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in region)
    return f"{printable} #{fold_numbers(occurrences)}" if occurrences else printable


def near_ceilings(record: WorldRecord) -> list[Verdict]:
    """Return the verdicts on ceilings that are kept, and nearly reached: above 95 % of them.

    One of each claim, that of the fullest occurrence.
    """
    found: dict[tuple[str, str, str, str | None], Verdict] = {}
    for verdict in record.verdicts:
        if _is_near(verdict):
            claim = (verdict.marker, verdict.argument, verdict.narrowing, verdict.region)
            known = found.get(claim)
            if known is None or _share(fullest(verdict)) > _share(fullest(known)):
                found[claim] = verdict
    return list(found.values())


def fullest(verdict: Verdict) -> RankFigure:
    """Return the figure of the rank that reached most of its ceiling."""
    return max(verdict.figures, key=_share)


def _share(figure: RankFigure) -> float:
    return (figure.measured or 0) / figure.expected if figure.expected > 0 else 0.0


def _is_near(verdict: Verdict) -> bool:
    kept = verdict.met and verdict.marker.startswith("max_")
    return kept and any(is_near(figure.measured, figure.expected) for figure in verdict.figures)


def is_near(measured: int | None, ceiling: int) -> bool:
    """Tell whether a figure is above 95 % of a ceiling; of none that is zero."""
    return 100 * (measured or 0) > _NEAR_PERCENT * ceiling > 0


def _ranks_of(record: WorldRecord) -> dict[tuple[str, int, str, Figures], list[int]]:
    ceilings = _ceilings(record.verdicts)
    found: dict[tuple[str, int, str, Figures], list[int]] = {}
    for rank, of_rank in sorted(record.by_rank.items()):
        for reading in of_rank:
            ceiling = ceilings.get((reading.region, reading.occurrence, rank))
            for device, figures in _by_device(reading, ceiling):
                key = (reading.region, reading.occurrence, device, figures)
                found.setdefault(key, []).append(rank)
    return found


def _ceilings(verdicts: Iterable[Verdict]) -> dict[tuple[str | None, int, int], int]:
    found: dict[tuple[str | None, int, int], int] = {}
    for verdict in verdicts:
        is_of_peak = (verdict.marker, verdict.argument) == ("max_memory", "peak")
        if is_of_peak and not _ELSEWHERE.search(verdict.narrowing):
            for figure in verdict.figures:
                key = (verdict.region, verdict.occurrence, figure.rank)
                found[key] = min(found.get(key, figure.expected), figure.expected)
    return found


def _by_device(reading: Reading, ceiling: int | None) -> Iterator[tuple[str, Figures]]:
    own = reading.memory.device
    devices = dict.fromkeys((own, *reading.memory.by_device, *reading.memory.live_by_device))
    for device in devices:
        figures = _figures(reading, device, ceiling)
        if device == own and not figures.nothing:
            yield "", figures
        # On another device than its own a rank's zero is no figure, only silence.
        elif device != own and (figures.state or figures.peak):
            yield f" on {device}", figures


def _figures(reading: Reading, device: str, ceiling: int | None) -> Figures:
    state, live = reading.memory.on(device), reading.memory.live_on(device)
    held = {category: getattr(state, category) for category in CATEGORIES}
    end, peak = (None, None) if live is None else (live.end, live.peak)
    if device != reading.memory.device:
        return Figures(**held, state=state.state, live=end, peak=peak)
    total = None if reading.collectives.unknown else reading.collectives.total
    saved = reading.saved
    return Figures(
        **held,
        state=state.state,
        live=end,
        peak=peak,
        ceiling=ceiling,
        calls=None if total is None else total.count,
        wire=None if total is None else total.wire_bytes,
        saved=saved.bytes if saved is not None and saved.measured else None,
    )


def _is_worst(place: _Place, everything: Mapping[_Place, Sequence[int]]) -> bool:
    """Compare with the other lines of the same occurrences."""
    rivals = [
        _weight(other.figures)
        for other, numbers in everything.items()
        if (other.region, other.device) == (place.region, place.device)
        and not set(numbers).isdisjoint(everything[place])
    ]
    return len(set(rivals)) > 1 and _weight(place.figures) == max(rivals)


def _weight(figures: Figures) -> int:
    return (figures.state if figures.peak is None else figures.peak) or 0
