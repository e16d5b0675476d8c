"""Sizes in bytes, read and written. Any size that is printed can be read back."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from pytest_shardcheck.vocabulary.errors import UsageError

_DECIMAL = ("B", "kB", "MB", "GB", "TB")
_BINARY = ("KiB", "MiB", "GiB", "TiB")
_FACTORS: dict[str, int] = {unit: 1000**power for power, unit in enumerate(_DECIMAL)} | {
    unit: 1024**power for power, unit in enumerate(_BINARY, start=1)
}
# The SI writes "kB" and the IEC "KiB"; people write both letters for both.
_ALIASES = {"KB": "kB", "kiB": "KiB"}
_SIZE = re.compile(
    r"(?P<number>(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*)(?:\.[0-9]+)?) ?(?P<unit>[A-Za-z]+)"
)

SIZES = 'an int of bytes or a size with a unit such as "2.1 MB" or "80 GiB"'


def parse_size(given: object) -> int:
    """Read a size in bytes: an int, or text such as "4.3 MB" (a fraction of a byte is dropped).

    Raises UsageError where it is neither, is negative, or has no unit that we know.
    """
    # A bool is an int to Python, and never a size.
    if isinstance(given, int) and not isinstance(given, bool):
        return _parse_int(given)
    if isinstance(given, str):
        return _parse_text(given)
    raise UsageError(f"{given!r} is a {type(given).__name__}; expected {SIZES}")


def _parse_int(size: int) -> int:
    if size < 0:
        raise UsageError(f"{size} is negative; expected {SIZES}")
    return size


def _parse_text(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} {_what_is_wrong(text)}; expected {SIZES}")
    unit = _ALIASES.get(match["unit"], match["unit"])
    if unit not in _FACTORS:
        units = ", ".join(_FACTORS)
        raise UsageError(f"{text!r} has no unit that is known ({units}); expected {SIZES}")
    number = match["number"].replace(",", "").replace("_", "")
    return math.floor(Fraction(number) * _FACTORS[unit])


def _what_is_wrong(text: str) -> str:
    if text.startswith("-"):
        return "is negative"
    if _SIZE.fullmatch(f"{text} B"):
        return "has no unit"
    return "is not a size"


def written_unit(given: object) -> str:
    """Name the unit that a size is written in ("GB", "GiB"); of an int, its decimal unit.

    Raises UsageError where `parse_size` does.
    """
    size = parse_size(given)
    match = _SIZE.fullmatch(given) if isinstance(given, str) else None
    return _ALIASES.get(match["unit"], match["unit"]) if match else _unit_of(size)


def counterpart(unit: str) -> str:
    """Name the binary unit beside a decimal one and the other way round: "GB" and "GiB"."""
    pairs = dict(zip(_DECIMAL[1:], _BINARY, strict=True))
    return (pairs | {binary: decimal for decimal, binary in pairs.items()}).get(unit, unit)


def in_unit(size: int, unit: str, digits: int = 1) -> str:
    """Write a size in one unit, rounded to `digits` decimals, without its name: "1,120.0"."""
    return f"{size:,}" if unit == "B" else f"{size / _FACTORS[unit]:,.{digits}f}"


def format_bytes(size: int) -> str:
    """Write a size to the byte: "8,421,440 B"."""
    return f"{size:,} B"


def format_size(size: int) -> str:
    """Write a size for reading, to the nearest tenth of its unit: "4.3 MB"."""
    unit = _unit_of(size)
    return f"{size} B" if unit == "B" else f"{size / _FACTORS[unit]:.1f} {unit}"


def format_ceiling(size: int) -> str:
    """Write a ceiling that `size` passes, in three digits rounded up: "8.43 MB"."""
    step = 10 ** max(0, len(str(size)) - 3)
    rounded = -(-size // step) * step
    unit = _unit_of(rounded)
    return f"{rounded / _FACTORS[unit]:.15g} {unit}"


def _unit_of(size: int) -> str:
    # From 999.95 of a unit on, the next one: a tenth would round to "1000.0 kB".
    reached = (unit for unit in reversed(_DECIMAL) if 20_000 * size >= 19_999 * _FACTORS[unit])
    return next(reached, "B")


def counted(number: int, noun: str) -> str:
    """Write a number of things: "1 world", "2 worlds"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
