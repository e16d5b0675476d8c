"""What a benchmark of a world tells beside its times. Pure functions over plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.specs import WorldSpec


def extra_info(
    spec: WorldSpec,
    readings: Iterable[Reading],
    timed_inside: Sequence[str],
    given: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the ``extra_info`` of a benchmark, in bytes and counts, each the largest of any rank.

    Args:
        spec: The world.
        readings: What its ranks measured; what they did not is left out.
        timed_inside: The regions that the benchmark ran in. How often it called the function is
            chance, and so are the collectives of these regions.
        given: What each rank put into its own ``extra_info``, which wins.
    """
    info: dict[str, Any] = {"world_size": spec.size, "backend": spec.backend}
    if timed_inside:
        info["timed_inside"] = list(timed_inside)
    regions: dict[str, list[Reading]] = {}
    for reading in readings:
        if reading.outermost:
            regions.setdefault(reading.region, []).append(reading)
    for region, its in regions.items():
        for name, value in _measured(its, counted=region not in timed_inside).items():
            info[name if len(regions) == 1 else f"{name} ({region})"] = value
    return info | _merged(given)


def _measured(readings: Sequence[Reading], *, counted: bool) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "peak": _largest(reading.memory.peak for reading in readings),
        "state": _largest(reading.memory.state for reading in readings),
    }
    if counted and not any(reading.collectives.unknown for reading in readings):
        figures["collectives"] = _counts(readings)
        figures["wire_bytes"] = _largest(r.collectives.total.wire_bytes for r in readings)
    return {name: value for name, value in figures.items() if value is not None}


def _largest(figures: Iterable[int | None]) -> int | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _counts(readings: Sequence[Reading]) -> dict[str, int]:
    names = dict.fromkeys(name for reading in readings for name in reading.collectives)
    return {name: max(r.collectives[name].count for r in readings) for name in names}


def _merged(given: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what ranks gave; a name whose values differ says of which ranks each is."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for its in given.values() for name in its):
        values: dict[str, tuple[Any, list[int]]] = {}
        for rank, its in sorted(given.items()):
            if name in its:
                values.setdefault(repr(its[name]), (its[name], []))[1].append(rank)
        for value, ranks in values.values():
            everywhere = len(values) == 1
            merged[name if everywhere else f"{name} ({fold_ranks(ranks)})"] = value
    return merged
