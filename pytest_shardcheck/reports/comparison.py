"""Two recordings → what got better or worse between them. Less is better, of every figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_shardcheck.reports.figures import label
from pytest_shardcheck.vocabulary.readings import CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from fractions import Fraction

    from pytest_shardcheck.reports.recording import Recording
    from pytest_shardcheck.vocabulary.readings import Reading
    from pytest_shardcheck.vocabulary.records import WorldRecord

_CALLS = " calls"
_WIRE = "wire bytes"
_LIVE = ("peak", "live", "growth")
# Region, occurrence, rank.
_Place: TypeAlias = tuple[str, int, int]
_Figures: TypeAlias = "Mapping[_Place, Mapping[str, int]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Hold a figure that `ranks` share and that is another one now.

    `figure` is an attribute of a reading's memory ("peak", "peak on cpu"), an operation's calls
    ("all_gather calls"), "wire bytes" or "saved activations". `before` is None where it was not
    measured, `after` where it is measured no more. `region` names occurrences where there are
    several.
    """

    nodeid: str
    region: str
    ranks: tuple[int, ...]
    figure: str
    before: int | None
    after: int | None

    @property
    def is_calls(self) -> bool:
        """Return whether the figure is a number of calls; otherwise it is bytes."""
        return self.figure.endswith(_CALLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Hold what differs between two recordings.

    `lost` are figures that a test of both no longer has: nobody can say that they got no worse.
    `close` counts the figures that moved within the tolerance, `equal` those that did not move and
    `new` those that only the second recording has, of the tests that both have (`common`).
    `incomplete` says why tests may be missing in the second. `environment` has what differs of it.
    """

    worse: tuple[Change, ...]
    better: tuple[Change, ...]
    lost: tuple[Change, ...]
    close: int
    equal: int
    new: int
    common: int
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    incomplete: str
    environment: Mapping[str, tuple[str, str]]
    outcomes: Mapping[str, str]

    def passes(self, *, strict: bool) -> bool:
        """Return whether nothing got worse; `strict`: and no test is gone."""
        gone = self.only_before if strict else self.incomparable
        return not (self.worse or self.lost or self.incomplete or gone)

    @property
    def incomparable(self) -> bool:
        """Return whether no test of the first recording is in the second: of another root, say."""
        return bool(self.only_before) and not self.common


def compare(before: Recording, after: Recording, tolerance: Fraction) -> Comparison:
    """Compare the tests that both have; a figure may grow by `tolerance`, a share of itself."""
    old = {record.nodeid: record for record in before.tests}
    new = {record.nodeid: record for record in after.tests}
    common = [nodeid for nodeid in old if nodeid in new]
    found = _Found()
    for nodeid in common:
        found.add(nodeid, _figures(old[nodeid]), _figures(new[nodeid]), tolerance)
    names = dict.fromkeys((*before.environment, *after.environment))
    environments = {
        name: (before.environment.get(name, "unknown"), after.environment.get(name, "unknown"))
        for name in names
    }
    return Comparison(
        worse=tuple(found.worse),
        better=tuple(found.better),
        lost=tuple(found.lost),
        close=len(found.close),
        equal=len(found.equal),
        new=len(found.new),
        common=len(common),
        only_before=tuple(nodeid for nodeid in old if nodeid not in new),
        only_after=tuple(nodeid for nodeid in new if nodeid not in old),
        incomplete=after.incomplete,
        environment={name: both for name, both in environments.items() if both[0] != both[1]},
        outcomes={nodeid: new[nodeid].outcome for nodeid in common},
    )


class _Found:
    """Sorts figures into what became of them."""

    def __init__(self) -> None:
        self.worse: list[Change] = []
        self.better: list[Change] = []
        self.lost: list[Change] = []
        self.close: list[Change] = []
        self.equal: list[Change] = []
        self.new: list[Change] = []

    def add(self, nodeid: str, before: _Figures, after: _Figures, tolerance: Fraction) -> None:
        """Compare the figures of one test."""
        folded: dict[int, _Folded] = {}
        kept: dict[int, list[Change]] = {}
        for place in dict.fromkeys((*before, *after)):
            for figure, old, new in _pairs(before.get(place, {}), after.get(place, {})):
                its = self._list_of(old, new, tolerance)
                kept[id(its)] = its
                folded.setdefault(id(its), _Folded()).add(place, figure, old, new)
        repeated = {region for region, occurrence, _ in (*before, *after) if occurrence}
        for key, changes in folded.items():
            kept[key] += changes.changes(nodeid, repeated)

    def _list_of(self, old: int | None, new: int | None, tolerance: Fraction) -> list[Change]:
        if old is None:
            return self.new
        if new is None:
            return self.lost
        if old == new:
            return self.equal
        if abs(new - old) <= abs(old) * tolerance:
            return self.close
        return self.worse if new > old else self.better


def _pairs(
    before: Mapping[str, int], after: Mapping[str, int]
) -> Iterator[tuple[str, int | None, int | None]]:
    """Pair the figures of two readings; where calls were counted, the absence of any is a zero."""
    for figure in dict.fromkeys((*before, *after)):
        if figure.endswith(_CALLS):
            old, new = (its.get(figure, 0 if _WIRE in its else None) for its in (before, after))
        else:
            old, new = before.get(figure), after.get(figure)
        yield figure, old, new


class _Folded:
    """Collects changes by place, and hands out equal ones as one."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, str, int | None, int | None], dict[int, list[int]]] = {}

    def add(self, place: _Place, figure: str, before: int | None, after: int | None) -> None:
        region, occurrence, rank = place
        of_occurrence = self._ranks.setdefault((region, figure, before, after), {})
        of_occurrence.setdefault(occurrence, []).append(rank)

    def changes(self, nodeid: str, repeated: set[str]) -> Iterator[Change]:
        for (region, figure, before, after), of_occurrence in self._ranks.items():
            occurrences: dict[tuple[int, ...], list[int]] = {}
            for occurrence, ranks in of_occurrence.items():
                occurrences.setdefault(tuple(ranks), []).append(occurrence)
            for same, numbers in occurrences.items():
                yield Change(
                    nodeid=nodeid,
                    region=label(region, numbers if region in repeated else ()),
                    ranks=same,
                    figure=figure,
                    before=before,
                    after=after,
                )


def _figures(record: WorldRecord) -> dict[_Place, dict[str, int]]:
    return {
        (reading.region, reading.occurrence, reading.rank): dict(_of_reading(reading))
        for reading in sorted(record.readings, key=lambda reading: reading.rank)
    }


def _of_reading(reading: Reading) -> Iterator[tuple[str, int]]:
    """Return the figures of a reading, by name; what was not measured is absent."""
    for name, amount in _of_memory(reading):
        if amount is not None:
            yield name, amount
    if not reading.collectives.unknown:
        for operation in reading.collectives:
            yield f"{operation}{_CALLS}", reading.collectives[operation].count
        yield _WIRE, reading.collectives.total.wire_bytes
    if reading.saved is not None and reading.saved.measured:
        yield "saved activations", reading.saved.bytes


def _of_memory(reading: Reading) -> Iterator[tuple[str, int | None]]:
    memory = reading.memory
    devices = (memory.device, *memory.by_device, *memory.live_by_device)
    for device in dict.fromkeys(devices):
        where = "" if device == memory.device else f" on {device}"
        state, live = memory.on(device), memory.live_on(device)
        for name in _LIVE:
            attribute = "end" if name == "live" else name
            yield f"{name}{where}", None if live is None else getattr(live, attribute)
        for name in ("state", *CATEGORIES):
            yield f"{name}{where}", getattr(state, name)
        yield f"allocated{where}", memory.allocated_on(device)
        yield f"reserved{where}", memory.reserved_on(device)
