"""Records → Markdown for the page of a CI job: what failed first, then what is close to failing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_shardcheck.reports.figures import fullest, near_ceilings, region_lines
from pytest_shardcheck.reports.markdown import cell, code, cut, fenced, row
from pytest_shardcheck.reports.table import percent
from pytest_shardcheck.vocabulary.ranks import fold_numbers
from pytest_shardcheck.vocabulary.units import format_bytes, format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.reports.figures import RegionLine
    from pytest_shardcheck.vocabulary.records import WorldRecord
    from pytest_shardcheck.vocabulary.verdicts import Verdict

# GitHub takes 1 MiB of all that a step writes; a character may have four bytes.
_MOST_CHARACTERS: Final = 200_000
_MOST_OF_A_FAILURE: Final = 8_000
_MOST_SEEN: Final = 10  # ceilings; more are folded
_HEADER: Final = (
    "test", "region", "ranks", "state", "live", "peak", "ceiling", "calls", "wire", "saved",
)  # fmt: skip
_SIZES: Final = ("state", "live", "peak", "wire", "saved")


def job_summary(records: Sequence[WorldRecord], in_short: str, incomplete: str = "") -> str:
    """Write the summary of a session; `in_short` is what its terminal says in one line."""
    lines = [f"### shardcheck: {in_short}"]
    if incomplete:
        lines += ["", f"> Incomplete: {cell(incomplete)}"]
    failed = [record for record in records if record.outcome in ("failed", "error")]
    lines += _failures(failed)
    lines += _near(records)
    lines += _table(records)
    return cut([*lines, ""], _MOST_CHARACTERS)


def _failures(records: Sequence[WorldRecord]) -> list[str]:
    lines: list[str] = []
    for record in records:
        text = record.failure.strip()
        first = text.partition("\n")[0]
        summary = f"<code>{_html(record.nodeid)}</code>: {_html(first)}"
        lines += ["", f"<details><summary><b>Failed</b> {summary}</summary>", ""]
        rest = len(text) - _MOST_OF_A_FAILURE
        shown = text if rest <= 0 else f"{text[:_MOST_OF_A_FAILURE]}\n... and {rest} characters"
        lines += [*fenced(shown), "", "</details>"]
    return lines


def _near(records: Iterable[WorldRecord]) -> list[str]:
    near = [(record, verdict) for record in records for verdict in near_ceilings(record)]
    if not near:
        return []
    rows = [row([code(record.nodeid), *_of_ceiling(verdict)]) for record, verdict in near]
    is_open = " open" if len(near) <= _MOST_SEEN else ""
    summary = f"<details{is_open}><summary>Ceilings within 5 % ({len(near)})</summary>"
    header = row(["test", "marker", "region", "measured", "ceiling", ""])
    return ["", summary, "", header, "|---|---|---|--:|--:|--:|", *rows, "", "</details>"]


def _of_ceiling(verdict: Verdict) -> list[str]:
    written = ", ".join(part for part in (verdict.argument, verdict.narrowing) if part)
    figure = fullest(verdict)
    amounts = [
        format_bytes(amount) if verdict.unit == "bytes" else f"{amount:,}"
        for amount in (figure.measured or 0, figure.expected)
    ]
    share = f"{1000 * (figure.measured or 0) // figure.expected / 10:.1f} %"
    return [code(f"{verdict.marker}({written})"), cell(verdict.region or ""), *amounts, share]


def _table(records: Iterable[WorldRecord]) -> list[str]:
    rows: list[str] = []
    for record in records:
        for number, line in enumerate(region_lines(record)):
            # A test's name once: the rows below are its own.
            rows.append(row(["" if number else code(record.nodeid), *_of_region(line)]))
    if not rows:
        return []
    header = [row(_HEADER), "|---|---|---|--:|--:|--:|--:|--:|--:|--:|"]
    summary = "<details><summary>What each rank held and sent</summary>"
    return ["", summary, "", *header, *rows, "", "</details>"]


def _of_region(line: RegionLine) -> list[str]:
    figures = line.figures
    ranks = fold_numbers(line.ranks)
    shown = {
        name: "-" if (size := getattr(figures, name)) is None else format_size(size)
        for name in _SIZES
    }
    shown["ceiling"] = "-" if figures.ceiling is None else percent(figures)
    shown["calls"] = "-" if figures.calls is None else f"{figures.calls:,}"
    ranks = f"**{ranks}**" if line.worst else ranks
    return [cell(line.region), ranks, *(shown[name] for name in _HEADER[3:])]


def _html(text: str) -> str:
    return " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
