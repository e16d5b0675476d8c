"""A comparison → text for a terminal, and Markdown for a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_shardcheck.reports.markdown import cell, code, cut, row
from pytest_shardcheck.vocabulary.ranks import fold_numbers
from pytest_shardcheck.vocabulary.units import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.reports.comparison import Change, Comparison

_HEADER: Final = ("region", "ranks", "figure", "before", "after", "change")
_FIGURES_FROM: Final = 3  # the columns before are words
_MOST_NAMES: Final = 20
_MOST_CHARACTERS: Final = 60_000  # GitHub refuses a comment of more than 65,536


def as_text(comparison: Comparison, tolerance: str) -> str:
    """Write the comparison for a terminal."""
    lines = [f"{line}\n" for line in _notes(comparison)]
    sections = _sections(comparison)
    rows = [_HEADER, *(_cells(change) for _, changes in sections for change in changes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for title, changes in sections:
        lines.append(f"{title}\n  {_aligned(_HEADER, widths)}\n")
        nodeid = None
        for change in changes:
            if change.nodeid != nodeid:
                nodeid = change.nodeid
                lines.append(f"{nodeid}{_outcome(comparison, nodeid)}\n")
            lines.append(f"  {_aligned(_cells(change), widths)}\n")
        lines.append("\n")
    for title, nodeids in _one_sided(comparison):
        lines += [f"{title}\n", *(f"  {name}\n" for name in _listed(nodeids)), "\n"]
    return "".join([*lines, f"{_in_short(comparison, tolerance)}\n"])


def as_markdown(comparison: Comparison, tolerance: str) -> str:
    """Write the comparison for a pull request: what got worse is seen, the rest is folded."""
    lines = [f"**shardcheck: {_in_short(comparison, tolerance)}**"]
    for note in _notes(comparison):
        lines += ["", f"> {cell(note)}"]
    for title, changes in _sections(comparison):
        is_open = title != _BETTER
        lines += ["", f"<details{' open' if is_open else ''}><summary>{title}</summary>", ""]
        lines += [row(["test", *_HEADER]), "|---|---|---|---|--:|--:|--:|"]
        nodeid = None
        for change in changes:
            # A test's name once: the rows below are its own.
            name = "" if change.nodeid == nodeid else code(change.nodeid)
            nodeid = change.nodeid
            lines.append(row([name, *map(cell, _cells(change))]))
        lines += ["", "</details>"]
    for title, nodeids in _one_sided(comparison):
        lines += ["", f"<details><summary>{title}</summary>", ""]
        lines += [
            f"- {name if name.startswith('and ') else code(name)}" for name in _listed(nodeids)
        ]
        lines += ["", "</details>"]
    return cut(lines, _MOST_CHARACTERS)


_WORSE: Final = "Worse"
_LOST: Final = "Measured no more"
_BETTER: Final = "Better"


def _sections(comparison: Comparison) -> list[tuple[str, Sequence[Change]]]:
    sections = (
        (_WORSE, comparison.worse),
        (_LOST, comparison.lost),
        (_BETTER, comparison.better),
    )
    return [(title, changes) for title, changes in sections if changes]


def _one_sided(comparison: Comparison) -> list[tuple[str, Sequence[str]]]:
    sections = (
        ("Only before", comparison.only_before),
        ("Only after", comparison.only_after),
    )
    return [(f"{title} ({len(names)})", names) for title, names in sections if names]


def _notes(comparison: Comparison) -> list[str]:
    notes = [
        f"{name}: {before} before, {after} after"
        for name, (before, after) in comparison.environment.items()
    ]
    if comparison.incomparable:
        notes.append("No test is in both: were they run from one folder, with the same tests?")
    if comparison.incomplete:
        notes.append(
            f"The run after is incomplete ({comparison.incomplete}): it can't show that nothing "
            "got worse."
        )
    return notes


def _cells(change: Change) -> tuple[str, ...]:
    return (
        change.region,
        fold_numbers(change.ranks),
        change.figure,
        _amount(change, change.before),
        _amount(change, change.after),
        _difference(change),
    )


def _amount(change: Change, amount: int | None) -> str:
    if amount is None:
        return "-"
    return f"{amount:,}" if change.is_calls else format_bytes(amount)


def _difference(change: Change) -> str:
    """Write by how much a figure changed: in percent, where it was anything before."""
    if change.before is None or change.after is None:
        return "lost"
    difference = change.after - change.before
    if not change.before:
        return f"{difference:+,}"
    share = 100 * difference / abs(change.before)
    # Rounded to "+0.0 %", the change would seem to be none.
    return f"{share:+,.1f} %" if abs(share) >= 0.1 else f"{difference:+,}"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = map(str.ljust, cells[:_FIGURES_FROM], widths)
    figures = map(str.rjust, cells[_FIGURES_FROM:], widths[_FIGURES_FROM:])
    return "  ".join((*words, *figures)).rstrip()


def _outcome(comparison: Comparison, nodeid: str) -> str:
    outcome = comparison.outcomes[nodeid]
    return "" if outcome == "passed" else f" ({outcome} now)"


def _listed(nodeids: Sequence[str]) -> Iterable[str]:
    rest = len(nodeids) - _MOST_NAMES
    return [*nodeids[:_MOST_NAMES], *([f"and {rest} more"] if rest > 0 else [])]


def _in_short(comparison: Comparison, tolerance: str) -> str:
    counts = {
        "worse": len(comparison.worse),
        "measured no more": len(comparison.lost),
        "better": len(comparison.better),
        f"within {tolerance}": comparison.close,
        "new": comparison.new,
        "equal": comparison.equal,
    }
    shown = [f"{n:,} {what}" for what, n in counts.items() if n or what in ("worse", "better")]
    tests = counted(comparison.common, "test")
    return f"{', '.join(shown)}; figures of {tests}"
