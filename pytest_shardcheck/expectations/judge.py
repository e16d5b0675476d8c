"""Expectations held against the readings of all ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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
_Place: TypeAlias = tuple[str, int]  # a region's name and its occurrence
_Judged: TypeAlias = dict[_Place, dict[int, Reading]]


def judge(
    expectations: Sequence[Expectation], spec: WorldSpec, readings: Readings
) -> list[Verdict]:
    """Hold the expectations of one world against what its ranks measured, by rank.

    There is a verdict for each argument and each occurrence of a judged region. Raises UsageError
    where a value can't be worked out for this world.
    """
    return _judge_all(expectations, spec, readings, chosen=False)


def judge_given(
    expectations: Sequence[Expectation], spec: WorldSpec, readings: Readings
) -> list[Verdict]:
    """Hold expectations against readings that somebody chose, as `shardcheck.check` does.

    As `judge`, but a rank without a reading is nobody's fault, and a nested region was meant.
    """
    return _judge_all(expectations, spec, readings, chosen=True)


def _judge_all(
    expectations: Sequence[Expectation], spec: WorldSpec, readings: Readings, *, chosen: bool
) -> list[Verdict]:
    return [
        verdict
        for expectation in applicable(expectations, spec)
        for verdict in _judge_one(expectation, spec, readings, chosen=chosen)
    ]


def _judge_one(
    expectation: Expectation, spec: WorldSpec, readings: Readings, *, chosen: bool
) -> Iterator[Verdict]:
    try:
        ranks = expectation.narrowing.select_ranks(spec)
    except LookupError as error:
        yield from _unmatched(expectation, str(error))
        return
    if chosen:
        ranks = tuple(rank for rank in ranks if rank in readings)
    judged = _judged_readings(expectation, ranks, readings, nested=chosen)
    if ranks and not judged:
        yield from _unmatched(expectation, _what_regions_there_were(expectation, readings))
        return
    for argument in expectation.values:
        verdicts = [
            _verdict(expectation, argument, place, ranks, judged[place]) for place in judged
        ]
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


def _judged_readings(
    expectation: Expectation, ranks: Sequence[int], readings: Readings, *, nested: bool
) -> _Judged:
    name = expectation.narrowing.region
    found = [
        (rank, reading)
        for rank in ranks
        for reading in readings.get(rank, ())
        if reading.region == name or (name is None and (nested or reading.outermost))
    ]
    # Where one rank opened a region and another none, the region is what the test is about.
    opened = [(rank, reading) for rank, reading in found if not reading.implicit]
    judged: _Judged = {}
    for rank, reading in opened or found:
        judged.setdefault((reading.region, reading.occurrence), {})[rank] = reading
    return judged


def _what_regions_there_were(expectation: Expectation, readings: Readings) -> str:
    ranks_of: dict[str, list[int]] = {}
    for rank, of_rank in readings.items():
        for reading in of_rank:
            if not reading.implicit:
                ranks_of.setdefault(reading.region, []).append(rank)
    name = expectation.narrowing.region
    if not ranks_of:
        opens = f"shardcheck.measure(model, optimizer, region={name or 'step'!r})"
        return f"the test opened no region; put the step inside `with {opens}:`"
    there = ", ".join(f"{region!r} ({fold_ranks(ranks)})" for region, ranks in ranks_of.items())
    wanted = "outermost region" if name is None else f"region {name!r}"
    hint = "" if name is None or name in ranks_of else suggestion(name, ranks_of)
    return f"the judged ranks opened no {wanted}{hint}; there were {there}"


def _verdict(
    expectation: Expectation,
    argument: str,
    place: _Place,
    ranks: Sequence[int],
    by_rank: Mapping[int, Reading],
) -> Verdict:
    region, occurrence = place
    expected = _amount(expectation, argument)
    tolerance = tolerance_of(expected, expectation.tolerance)
    found = {
        rank: expectation.measure.read(reading, argument, expectation.narrowing)
        for rank, reading in by_rank.items()
    }
    detail = _why_unmeasured(place, ranks, found)
    return Verdict(
        marker=expectation.marker,
        argument=argument,
        kind="unmeasured" if detail else _kind(expectation, expected, tolerance, found),
        region=region,
        occurrence=occurrence,
        figures=tuple(
            RankFigure(
                rank=rank, measured=figure.amount, expected=expected, breakdown=figure.breakdown
            )
            for rank, figure in found.items()
        ),
        tolerance=tolerance,
        detail=detail,
        narrowing=str(expectation.narrowing),
    )


def _amount(expectation: Expectation, argument: str) -> int:
    value = expectation.values[argument]
    assert isinstance(value, int), "applicable() works every value out"
    return value


def _why_unmeasured(place: _Place, ranks: Sequence[int], found: Mapping[int, Figure]) -> str:
    absent = [rank for rank in ranks if rank not in found]
    if absent:
        region, occurrence = place
        return (
            f"{fold_ranks(absent)} recorded no region {region!r} #{occurrence}, which "
            f"{fold_ranks(found)} did; open it there too, or narrow the marker with rank="
        )
    ranks_of: dict[str, list[int]] = {}
    for rank, figure in found.items():
        if figure.amount is None:
            ranks_of.setdefault(figure.missing, []).append(rank)
    return "; ".join(f"{fold_ranks(ranks)}: {missing}" for missing, ranks in ranks_of.items())


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
