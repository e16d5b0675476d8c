"""Words of the command line → values, as `type=` of argparse; what is wrong is said by it."""

from __future__ import annotations

import argparse
import re
from fractions import Fraction

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import parse_size

_COUNT = re.compile(r"([0-9]{1,3}(,[0-9]{3})+|[0-9][0-9_]*)(\.[0-9]+)?([eE]\+?[0-9]{1,2})?")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)")
_MOST_OF_A_RANGE = 100


def a_count(text: str) -> int:
    """Read a whole number from 1 on: "70e9", "526,336", "7_000"."""
    if _COUNT.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no count; expected a number such as 70e9 or 526336"
        )
    number = Fraction(text.replace("_", "").replace(",", ""))
    if number.denominator != 1 or number < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number from 1 on")
    return int(number)


def counts(text: str) -> tuple[int, ...]:
    """Read a list of whole numbers from 1 on, such as "8,16,64", in order, each once."""
    return tuple(sorted({a_count(word.strip()) for word in text.split(",")}))


def words(text: str) -> tuple[str, ...]:
    """Read a list of words, such as "none,full", each once; a range "2..5" is its numbers."""
    found: list[str] = []
    for word in map(str.strip, text.split(",")):
        found += _of_range(word)
    if not all(found):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty entry")
    return tuple(dict.fromkeys(found))


def a_size(text: str) -> str:
    """Check that this is a size with a unit, and leave it as it was written."""
    try:
        parse_size(text)
    except UsageError as error:
        # An option is text: a bare number has no unit, while Python code may give an int.
        raise argparse.ArgumentTypeError(
            f"{str(error).partition(';')[0]}; expected a size with a unit, such as "
            '"80 GB" (decimal) or "80 GiB" (binary)'
        ) from None
    return text


def _of_range(word: str) -> list[str]:
    match = _RANGE.fullmatch(word)
    if match is None:
        return [word]
    first, last = int(match[1]), int(match[2])
    if not first < last < first + _MOST_OF_A_RANGE:
        raise argparse.ArgumentTypeError(f"{word!r}: expected a rising range such as 2..5")
    return [str(number) for number in range(first, last + 1)]
