"""Expectations held against the readings of all ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from pytest_shardcheck.expectations.closeness import applicable
from pytest_shardcheck.expectations.usage import suggestion
from pytest_shardcheck.expectations.values import tolerance_of
from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.verdicts import Kind, RankFigure, Verdict

if TYPE_CHECKING:
    from pytest_shardcheck.expectations.expectation import Expectation
    from pytest_shardcheck.expectations.measure import Figure
    from pytest_shardcheck.vocabulary.specs import WorldSpec

Readings: TypeAlias = Mapping[int, Sequence[Reading]]
Abandoned: TypeAlias = Mapping[int, Sequence[str]]  # rank to regions that an exception ended
_Place: TypeAlias = tuple[str, int]  # a region's name and its occurrence


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    """What the ranks of a world have to show."""

    readings: Readings
    abandoned: Abandoned


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """The part of the evidence that one expectation is about."""

    ranks: Sequence[int]
    by_place: Mapping[_Place, Mapping[int, Reading]]
    abandoned: Abandoned


def judge(
    expectations: Sequence[Expectation],
    spec: WorldSpec,
    readings: Readings,
    abandoned: Abandoned | None = None,
) -> list[Verdict]:
    """Hold the expectations of one world against what its ranks measured, by rank.

    `abandoned` names the regions that have no reading because an exception ended them. There is a
    verdict for each argument and each occurrence of a judged region. Raises UsageError where a
    value can't be worked out for this world.
    """
    evidence = _Evidence(readings=readings, abandoned=abandoned or {})
    return _judge_all(expectations, spec, evidence, chosen=False)


def judge_given(
    expectations: Sequence[Expectation], spec: WorldSpec, readings: Readings
) -> list[Verdict]:
    """Hold expectations against readings that somebody chose, as `shardcheck.check` does.

    As `judge`, but a rank without a reading is nobody's fault, and a nested region was meant.
    """
    evidence = _Evidence(readings=readings, abandoned={})
    return _judge_all(expectations, spec, evidence, chosen=True)


def _judge_all(
    expectations: Sequence[Expectation], spec: WorldSpec, evidence: _Evidence, *, chosen: bool
) -> list[Verdict]:
    return [
        verdict
        for expectation in applicable(expectations, spec)
        for verdict in _judge_one(expectation, spec, evidence, chosen=chosen)
    ]


def _judge_one(
    expectation: Expectation, spec: WorldSpec, evidence: _Evidence, *, chosen: bool
) -> Iterator[Verdict]:
    try:
        ranks = expectation.narrowing.select_ranks(spec)
    except LookupError as error:
        yield from _unmatched(expectation, str(error))
        return
    if chosen:
        ranks = tuple(rank for rank in ranks if rank in evidence.readings)
    judged = _judged(expectation, ranks, evidence, nested=chosen)
    if ranks and not judged.by_place:
        yield from _unmatched(expectation, _what_regions_there_were(expectation, evidence))
        return
    for argument in expectation.values:
        verdicts = [_verdict(expectation, argument, place, judged) for place in judged.by_place]
        yield from _refuse_vacuous(expectation, verdicts)


def _unmatched(expectation: Expectation, detail: str) -> Iterator[Verdict]:
    for argument in expectation.values:
        yield Verdict(
            marker=expectation.marker,
            argument=argument,
            kind="unmatched",
            region=expectation.narrowing.region,
            detail=detail,
            narrowing=str(expectation.narrowing),
        )


def _judged(
    expectation: Expectation, ranks: Sequence[int], evidence: _Evidence, *, nested: bool
) -> _Judged:
    name = expectation.narrowing.region
    found = [
        (rank, reading)
        for rank in ranks
        for reading in evidence.readings.get(rank, ())
        if reading.region == name or (name is None and (nested or reading.outermost))
    ]
    # Where any rank opened a region, no other's body is one: the test is about the region.
    everything = (reading for of_rank in evidence.readings.values() for reading in of_rank)
    if not all(reading.implicit for reading in everything):
        found = [(rank, reading) for rank, reading in found if not reading.implicit]
    by_place: dict[_Place, dict[int, Reading]] = {}
    for rank, reading in found:
        by_place.setdefault((reading.region, reading.occurrence), {})[rank] = reading
    return _Judged(ranks=ranks, by_place=by_place, abandoned=evidence.abandoned)


def _what_regions_there_were(expectation: Expectation, evidence: _Evidence) -> str:
    name = expectation.narrowing.region
    if lost := _lost(evidence.abandoned, name):
        return lost
    ranks_of: dict[str, list[int]] = {}
    for rank, of_rank in evidence.readings.items():
        for reading in of_rank:
            if not reading.implicit:
                ranks_of.setdefault(reading.region, []).append(rank)
    if not ranks_of:
        opens = f"shardcheck.measure(model, optimizer, region={name or 'step'!r})"
        return f"the test opened no region; put the step inside `with {opens}:`"
    there = ", ".join(f"{region!r} ({fold_ranks(ranks)})" for region, ranks in ranks_of.items())
    wanted = "outermost region" if name is None else f"region {name!r}"
    hint = "" if name is None or name in ranks_of else suggestion(name, ranks_of)
    return f"the judged ranks opened no {wanted}{hint}; there were {there}"


def _verdict(expectation: Expectation, argument: str, place: _Place, judged: _Judged) -> Verdict:
    region, occurrence = place
    expected = _amount(expectation, argument)
    tolerance = tolerance_of(expected, expectation.tolerance)
    found = {
        rank: expectation.measure.read(reading, argument, expectation.narrowing)
        for rank, reading in judged.by_place[place].items()
    }
    kind: Kind
    if detail := _unmatched_everywhere(found):
        kind = "unmatched"
    elif detail := _why_unmeasured(place, judged, found):
        kind = "unmeasured"
    else:
        found = {rank: figure for rank, figure in found.items() if not figure.outside}
        kind = _kind(expectation, expected, tolerance, found)
    return Verdict(
        marker=expectation.marker,
        argument=argument,
        kind=kind,
        region=region,
        occurrence=occurrence,
        figures=tuple(
            RankFigure(
                rank=rank, measured=figure.amount, expected=expected, breakdown=figure.breakdown
            )
            for rank, figure in found.items()
        ),
        tolerance=tolerance,
        unit=expectation.measure.unit(argument),
        detail=detail,
        narrowing=str(expectation.narrowing),
    )


def _amount(expectation: Expectation, argument: str) -> int:
    value = expectation.values[argument]
    assert isinstance(value, int), "applicable() works every value out"
    return value


def _lost(abandoned: Abandoned, name: str | None) -> str:
    """Say which regions have no reading because an exception ended them."""
    ranks_of: dict[str, list[int]] = {}
    for rank, regions in abandoned.items():
        for region in dict.fromkeys(regions):
            if name in (None, region):
                ranks_of.setdefault(region, []).append(rank)
    return "; ".join(
        f"region {region!r} was ended by an exception on {fold_ranks(ranks)}, so it has none; "
        "keep what may raise out of the region"
        for region, ranks in ranks_of.items()
    )


def _unmatched_everywhere(found: Mapping[int, Figure]) -> str:
    """Say what there was where a phase or group chose nothing on any rank."""
    if not all(figure.unmatched for figure in found.values()):
        return ""
    return _by_ranks({rank: figure.unmatched for rank, figure in found.items()})


def _by_ranks(texts: Mapping[int, str]) -> str:
    """Say each text once, after the ranks that it is of."""
    ranks_of: dict[str, list[int]] = {}
    for rank, text in texts.items():
        ranks_of.setdefault(text, []).append(rank)
    return "; ".join(f"{fold_ranks(ranks)}: {text}" for text, ranks in ranks_of.items())


def _why_unmeasured(place: _Place, judged: _Judged, found: Mapping[int, Figure]) -> str:
    absent = [rank for rank in judged.ranks if rank not in found]
    if absent:
        region, occurrence = place
        if lost := _lost({rank: judged.abandoned.get(rank, ()) for rank in absent}, region):
            return lost
        return (
            f"{fold_ranks(absent)} recorded no region {region!r} #{occurrence}, which "
            f"{fold_ranks(found)} did; open it there too, or narrow the marker with rank="
        )
    return _by_ranks(
        {
            rank: figure.missing or figure.unmatched
            for rank, figure in found.items()
            if figure.amount is None and not figure.outside
        }
    )


def _kind(
    expectation: Expectation, expected: int, tolerance: int, found: Mapping[int, Figure]
) -> Kind:
    amounts = [figure.amount for figure in found.values() if figure.amount is not None]
    if not expectation.exact:
        return "crossed" if max(amounts) > expected else "met"
    return "different" if any(abs(a - expected) > tolerance for a in amounts) else "met"


def _refuse_vacuous(expectation: Expectation, verdicts: list[Verdict]) -> Iterator[Verdict]:
    """Turn a ceiling that held over nothing but zeros into "unmeasured".

    Occurrences of one region are looked at together: the first of several steps may rightly have
    no optimizer state yet.
    """
    busy = {
        verdict.region
        for verdict in verdicts
        if any(figure.measured != 0 for figure in verdict.figures)
    }
    for verdict in verdicts:
        if verdict.region in busy or not _may_be_vacuous(expectation, verdict):
            yield verdict
        else:
            detail = (
                f"{verdict.argument} was 0 on every judged rank, so its ceiling held nothing back; "
                f"check what is watched, or write {verdict.argument}=0 to mean zero"
            )
            yield replace(verdict, kind="unmeasured", detail=detail)


def _may_be_vacuous(expectation: Expectation, verdict: Verdict) -> bool:
    return (
        verdict.kind == "met"
        and not expectation.exact
        and verdict.argument in expectation.measure.vacuous_at_zero
        and _amount(expectation, verdict.argument) > 0
    )
