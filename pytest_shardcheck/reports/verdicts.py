"""Verdicts → the text of a failure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_shardcheck.vocabulary.ranks import fold_numbers, fold_ranks
from pytest_shardcheck.vocabulary.readings import CATEGORIES, StateBytes
from pytest_shardcheck.vocabulary.units import format_bytes, format_ceiling, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.vocabulary.specs import WorldSpec
    from pytest_shardcheck.vocabulary.verdicts import RankFigure, Verdict


def explain(verdicts: Sequence[Verdict], spec: WorldSpec) -> str:
    """Say what was expected, what was seen and what would pass; "" where all are met.

    Equal ranks and equal occurrences of a region are folded.
    """
    lines: list[str] = []
    for verdict, occurrences in _fold_occurrences(verdicts):
        lines += _explain_one(verdict, occurrences, verdicts, spec)
    return "\n".join(lines)


def _fold_occurrences(verdicts: Iterable[Verdict]) -> list[tuple[Verdict, list[int]]]:
    folded: dict[Verdict, list[int]] = {}
    for verdict in verdicts:
        if not verdict.met:
            folded.setdefault(replace(verdict, occurrence=0), []).append(verdict.occurrence)
    return list(folded.items())


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
    narrowing = f", {verdict.narrowing}" if verdict.narrowing else ""
    return f"{verdict.marker}({verdict.argument}{narrowing})"


def _occurrences(verdict: Verdict, occurrences: Sequence[int], verdicts: Iterable[Verdict]) -> str:
    regions = {(other.region, other.occurrence) for other in verdicts}
    if sum(region == verdict.region for region, _ in regions) == 1:
        return ""
    return f" #{fold_numbers(occurrences)}"


def _limit(verdict: Verdict) -> str:
    expected = _size(verdict.figures[0].expected)
    if verdict.kind == "crossed":
        return f"the ceiling of {expected} was crossed"
    tolerance = f" ± {format_bytes(verdict.tolerance)}" if verdict.tolerance else ""
    return f"{expected}{tolerance} was expected and not measured"


def _rank_lines(verdict: Verdict) -> list[str]:
    ranks_of: dict[RankFigure, list[int]] = {}
    for figure in verdict.figures:
        ranks_of.setdefault(replace(figure, rank=0), []).append(figure.rank)
    lines: list[str] = []
    for figure, ranks in ranks_of.items():
        measured = figure.measured or 0  # a figure of a crossed or different verdict has one
        lines.append(f"  {fold_ranks(ranks)}: {_size(measured)}, {_excess(figure, measured)}")
        lines.append(f"    {_breakdown(figure.breakdown)}")
    return lines


def _size(size: int) -> str:
    return format_bytes(size) if size < 1000 else f"{format_bytes(size)} ({format_size(size)})"


def _excess(figure: RankFigure, measured: int) -> str:
    excess = measured - figure.expected
    if excess == 0:
        return "as expected"
    side = "above" if excess > 0 else "below"
    return f"{format_bytes(abs(excess))}{_percent(excess, figure.expected)} {side}"


def _percent(excess: int, expected: int) -> str:
    if expected == 0:
        return ""
    percent = abs(excess) / expected * 100
    return f" ({percent:,.1f} %)" if percent >= 0.1 else " (less than 0.1 %)"


def _breakdown(state: StateBytes) -> str:
    held = ((category, getattr(state, category)) for category in CATEGORIES)
    return ", ".join(
        f"{category} {'not watched' if size is None else format_bytes(size)}"
        for category, size in held
    )


def _what_would_pass(verdict: Verdict, verdicts: Iterable[Verdict], spec: WorldSpec) -> str:
    """Write the arguments that everything measured under this claim passes."""
    measured = {
        figure.measured
        for other in verdicts
        if _claim(other) == _claim(verdict)
        for figure in other.figures
        if figure.measured is not None
    }
    call, at = f"{verdict.argument}=", f"at world size {spec.size}"
    ceiling = f'{call}"{format_ceiling(max(measured))}"'
    if verdict.kind == "crossed":
        return f"a ceiling that passes {at}: {ceiling}"
    if len(measured) == 1:
        return f"the value that passes {at}: {call}{max(measured):_}"
    return f"the figures differ; narrow by rank= or region=, or use max_{verdict.marker}({ceiling})"
