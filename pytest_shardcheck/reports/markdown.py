"""Small pieces of GitHub's Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def cell(text: str) -> str:
    """Write text so that nothing in it is markup, and a table's row stays whole."""
    escaped = "".join(f"\\{letter}" if letter in "\\`*_[]<>|#~" else letter for letter in text)
    return " ".join(escaped.split())


def code(text: str) -> str:
    """Write text as code, inside of a table too: a test id may have any character."""
    text = " ".join(text.split()).replace("|", "\\|")
    ticks = "`"
    while ticks in text:
        ticks += "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def fenced(text: str) -> list[str]:
    """Write text as a block, whatever fences it has itself."""
    fence = "```"
    while fence in text:
        fence += "`"
    return [f"{fence}text", *text.rstrip("\n").splitlines(), fence]


def row(cells: Iterable[str]) -> str:
    """Write a row of a table."""
    return f"| {' | '.join(cells)} |"


def cut(lines: Sequence[str], most_characters: int) -> str:
    """Join lines; what is too long ends, between blocks, with how much was left out."""
    text = "\n".join(lines) + "\n"
    if len(text) <= most_characters:
        return text
    kept: list[str] = []
    size = 200  # room for what closes the text
    for line in lines:
        size += len(line) + 1
        if size > most_characters:
            break
        kept.append(line)
    left_out = f"({len(lines) - len(kept)} lines left out.)"
    return "\n".join([*kept, *_what_closes(kept), "", left_out]) + "\n"


def _what_closes(lines: Sequence[str]) -> list[str]:
    """Return what ends the block and the folded parts that are open after these lines."""
    fence, folded = "", 0
    for line in lines:
        if fence:
            fence = "" if line == fence else fence
        elif line.startswith("```"):
            fence = line.removesuffix("text")
        else:
            folded += line.startswith("<details") - line.startswith("</details")
    return [*([fence] if fence else []), *["", "</details>"] * folded]
