"""`shardcheck compare`: what got better or worse between two recordings."""

from __future__ import annotations

import re
import sys
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.reports.comparison import compare
from pytest_shardcheck.reports.comparison_text import as_markdown, as_text
from pytest_shardcheck.reports.recording import read
from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    import argparse

NAME: Final = "compare"
HELP: Final = (
    "Show what got better or worse between two recordings of --shardcheck-json. Ends with 1 where "
    "a figure got worse, or can't be compared any more, and with 2 where a file can't be read."
)

_PERCENT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("before", type=Path, help="the recording to compare with")
    parser.add_argument("after", type=Path, help="the recording of now")
    parser.add_argument(
        "--tolerance",
        default="0%",
        metavar="PERCENT",
        help="how much a figure may grow, such as 1%% (default: nothing)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="end with 1 also where a test is only in the first"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="write Markdown, for a pull-request comment"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the comparison; return 1 where something got worse. Raises UsageError."""
    tolerance = _share(arguments.tolerance)
    comparison = compare(read(arguments.before), read(arguments.after), tolerance)
    write = as_markdown if arguments.markdown else as_text
    sys.stdout.write(write(comparison, arguments.tolerance))
    return 0 if comparison.passes(strict=arguments.strict) else 1


def _share(text: str) -> Fraction:
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--tolerance: a percentage such as 1% is expected, not {text!r}")
    return Fraction(match[1]) / 100
