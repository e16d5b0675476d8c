"""`collectives` and `max_collectives`: calls that reached a process group, per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_shardcheck.expectations.measure import (
    Figure,
    Measure,
    base,
    kind_of,
    unmatched_phase,
)
from pytest_shardcheck.expectations.usage import suggestion
from pytest_shardcheck.vocabulary.collectives import OPERATIONS, CollectivesReading, Volume

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_shardcheck.expectations.narrowing import Narrowing
    from pytest_shardcheck.vocabulary.readings import Reading
    from pytest_shardcheck.vocabulary.verdicts import Unit

_OVERALL: Final[Mapping[str, Unit]] = {
    "count": "calls",
    "bytes": "bytes",
    "wire_bytes": "bytes",
    "largest": "bytes",
}
_ARGUMENTS: Final[Mapping[str, Unit]] = {**dict.fromkeys(OPERATIONS, "calls"), **_OVERALL}


def _read(reading: Reading, argument: str, narrowing: Narrowing) -> Figure:
    calls = reading.collectives
    if calls.unknown:
        return Figure(
            amount=None,
            missing=(
                "operators that this version does not know reached a process group: "
                f"{', '.join(calls.unknown)}; no count can be trusted"
            ),
        )
    if narrowing.group is not None:
        if narrowing.group not in calls.groups:
            return Figure(amount=None, unmatched=_no_group(narrowing.group, calls), outside=True)
        calls = calls.group(narrowing.group)
    if unmatched := unmatched_phase(reading, narrowing):
        return Figure(amount=None, unmatched=unmatched)
    if narrowing.phase is not None:
        calls = calls.phase(narrowing.phase)
    return _figure(calls, argument)


def _no_group(name: str, calls: CollectivesReading) -> str:
    there = ", ".join(map(repr, calls.groups)) or "none"
    hint = suggestion(name, calls.groups)
    return f"there is no process group {name!r}{hint}; the groups were {there}"


def _figure(calls: CollectivesReading, argument: str) -> Figure:
    if argument in OPERATIONS:
        return Figure(amount=calls[argument].count, breakdown=_only(calls, argument))
    kind = kind_of(argument)
    volume: Volume = calls[kind] if kind else calls.total
    return Figure(amount=getattr(volume, base(argument)), breakdown=_only(calls, kind))


def _only(calls: CollectivesReading, operation: str) -> CollectivesReading:
    chosen = tuple(call for call in calls.calls if operation in ("", call.operation))
    return CollectivesReading(calls=chosen)


COLLECTIVES = Measure(
    noun="collectives",
    arguments=_ARGUMENTS,
    narrowings=("rank", "world_size", "region", "phase", "group"),
    read=_read,
    in_phases=tuple(_ARGUMENTS),
    ceilings=tuple(_OVERALL),
    by_kind=("bytes", "wire_bytes", "largest"),
    closed=OPERATIONS,
)
