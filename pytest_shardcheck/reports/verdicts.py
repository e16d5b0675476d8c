"""Verdicts → the text of a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from pytest_shardcheck.reports.breakdowns import breakdown_lines
from pytest_shardcheck.vocabulary.ranks import fold_numbers, fold_ranks
from pytest_shardcheck.vocabulary.units import format_bytes, format_ceiling, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.vocabulary.specs import WorldSpec
    from pytest_shardcheck.vocabulary.verdicts import RankFigure, Unit, Verdict

_T = TypeVar("_T")
_MOST_NAMED: Final = 3  # a closed marker judges every operation


def explain(verdicts: Sequence[Verdict], spec: WorldSpec) -> str:
    """Say what was expected, what was seen and what would pass; "" where all are met.

    Equal ranks, equal occurrences of a region, and arguments that fail for one reason are folded.
    """
    lines: list[str] = []
    for verdict, occurrences in _fold_arguments(_fold_occurrences(verdicts)):
        lines += _explain_one(verdict, occurrences, verdicts, spec)
    return "\n".join(lines)


def _fold_occurrences(verdicts: Iterable[Verdict]) -> list[tuple[Verdict, list[int]]]:
    unmet = (verdict for verdict in verdicts if not verdict.met)
    return _folded((replace(verdict, occurrence=0), verdict.occurrence) for verdict in unmet)


def _folded(pairs: Iterable[tuple[_T, int]]) -> list[tuple[_T, list[int]]]:
    """Group the numbers of equal things, by comparing: breakdowns hold mappings."""
    folded: list[tuple[_T, list[int]]] = []
    for thing, number in pairs:
        for known, numbers in folded:
            if known == thing:
                numbers.append(number)
                break
        else:
            folded.append((thing, [number]))
    return folded


def _fold_arguments(
    verdicts: Iterable[tuple[Verdict, list[int]]],
) -> list[tuple[Verdict, list[int]]]:
    """Join the arguments of one marker that nothing was measured for, for the same reason."""
    folded: list[tuple[Verdict, list[int]]] = []
    arguments: list[list[str]] = []
    for verdict, occurrences in verdicts:
        alike = (replace(verdict, argument="", unit="bytes", figures=()), occurrences)
        if verdict.kind not in ("unmatched", "unmeasured"):
            folded.append((verdict, occurrences))
            arguments.append([verdict.argument])
        elif alike in folded:
            arguments[folded.index(alike)].append(verdict.argument)
        else:
            folded.append(alike)
            arguments.append([verdict.argument])
    return [
        (replace(verdict, argument=", ".join(names) if len(names) <= _MOST_NAMED else ""), numbers)
        for (verdict, numbers), names in zip(folded, arguments, strict=True)
    ]


def _explain_one(
    verdict: Verdict, occurrences: Sequence[int], verdicts: Sequence[Verdict], spec: WorldSpec
) -> list[str]:
    if verdict.kind == "unmatched":
        return [f"{_claim(verdict)} matched nothing at {spec.id}: {verdict.detail}."]
    place = f"in region {verdict.region!r}{_occurrences(verdict, occurrences, verdicts)}"
    if verdict.kind == "unmeasured":
        return [f"{_claim(verdict)} is unmeasured {place} at {spec.id}: {verdict.detail}."]
    limit = _limit(verdict)
    return [
        f"{_claim(verdict)}: {limit} {place} at {spec.id}",
        *_rank_lines(verdict),
        f"  {_what_would_pass(verdict, verdicts, spec)}",
    ]


def _claim(verdict: Verdict) -> str:
    written = ", ".join(part for part in (verdict.argument, verdict.narrowing) if part)
    return f"{verdict.marker}({written})"


def _occurrences(verdict: Verdict, occurrences: Sequence[int], verdicts: Iterable[Verdict]) -> str:
    regions = {(other.region, other.occurrence) for other in verdicts}
    if sum(region == verdict.region for region, _ in regions) == 1:
        return ""
    return f" #{fold_numbers(occurrences)}"


def _limit(verdict: Verdict) -> str:
    expected = _amount(verdict.figures[0].expected, verdict.unit)
    if verdict.kind == "crossed":
        return f"the ceiling of {expected} was crossed"
    tolerance = f" ± {_short(verdict.tolerance, verdict.unit)}" if verdict.tolerance else ""
    singular = verdict.unit == "bytes" or verdict.figures[0].expected == 1
    return f"{expected}{tolerance} {'was' if singular else 'were'} expected and not measured"


def _rank_lines(verdict: Verdict) -> list[str]:
    lines: list[str] = []
    alike = _folded((replace(figure, rank=0), figure.rank) for figure in verdict.figures)
    for figure, ranks in alike:
        measured = figure.measured or 0  # a figure of a crossed or different verdict has one
        excess = _excess(figure, measured, verdict.unit)
        lines.append(f"  {fold_ranks(ranks)}: {_amount(measured, verdict.unit)}, {excess}")
        if measured != figure.expected or verdict.unit == "bytes":
            lines += [f"    {line}" for line in breakdown_lines(figure.breakdown, verdict.argument)]
    return lines


def _short(amount: int, unit: Unit) -> str:
    if unit == "bytes":
        return format_bytes(amount)
    return f"{amount:,} {unit.removesuffix('s') if abs(amount) == 1 else unit}"


def _amount(amount: int, unit: Unit) -> str:
    short = _short(amount, unit)
    if unit != "bytes" or amount < 1000:
        return short
    # What a GPU's memory is called in, and what tools print of it.
    binary = f", {amount / 2**30:,.3f} GiB" if amount >= 2**30 else ""
    return f"{short} ({format_size(amount)}{binary})"


def _excess(figure: RankFigure, measured: int, unit: Unit) -> str:
    excess = measured - figure.expected
    if excess == 0:
        return "as expected"
    side = "above" if excess > 0 else "below"
    if unit != "bytes":
        return f"{abs(excess):,} {'more' if excess > 0 else 'fewer'}"
    return f"{format_bytes(abs(excess))}{_percent(excess, figure.expected)} {side}"


def _percent(excess: int, expected: int) -> str:
    if expected == 0:
        return ""
    percent = abs(excess) / expected * 100
    return f" ({percent:,.1f} %)" if percent >= 0.1 else " (less than 0.1 %)"


def _what_would_pass(verdict: Verdict, verdicts: Iterable[Verdict], spec: WorldSpec) -> str:
    """Write the arguments that everything measured under this claim passes."""
    measured = {
        figure.measured
        for other in verdicts
        if _claim(other) == _claim(verdict)
        for figure in other.figures
        if figure.measured is not None
    }
    at = f"at world size {spec.size}"
    ceiling = _written(verdict, _ceiling(max(measured), verdict.unit))
    if verdict.kind == "crossed":
        return f"a ceiling that passes {at}: {ceiling}"
    if min(measured) < 0:
        return f"less was alive at the end than at the start; max_{verdict.marker}(growth=0) passes"
    if len(measured) == 1:
        return f"the value that passes {at}: {_written(verdict, f'{max(measured):_}')}"
    return f"the figures differ; narrow by rank= or region=, or use max_{verdict.marker}({ceiling})"


def _ceiling(amount: int, unit: Unit) -> str:
    return f'"{format_ceiling(amount)}"' if unit == "bytes" else str(amount)


def _written(verdict: Verdict, value: str) -> str:
    """Write an argument as the marker takes it: one by kind is a mapping."""
    name, _, kind = verdict.argument.rstrip("]").partition("[")
    return f'{name}={{"{kind}": {value}}}' if kind else f"{name}={value}"
