"""What an argument may be given: an amount, amounts by world size, or a callable of the world."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TypeAlias

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.specs import WorldSpec

Value: TypeAlias = int | Mapping[int, int] | Callable[[WorldSpec], object]
Tolerance: TypeAlias = int | Fraction
ParseAmount: TypeAlias = Callable[[object], int]

_SHARES = '"1%" or 0.01'
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?%")


def parse_value(given: object, parse_amount: ParseAmount) -> Value:
    """Read what an argument was given, as far as that goes without a world.

    Raises UsageError where it is neither an amount, a mapping from world size, nor a callable.
    """
    if isinstance(given, Mapping):
        return _parse_by_size(given, parse_amount)
    if callable(given):
        return given
    try:
        return parse_amount(given)
    except UsageError as error:
        raise UsageError(
            f"{error}, a mapping from world size to either, or a callable of the world"
        ) from None


def _parse_by_size(given: Mapping[object, object], parse_amount: ParseAmount) -> dict[int, int]:
    if not given:
        raise UsageError("the mapping is empty; expected world sizes, such as {2: ..., 4: ...}")
    return {_parse_size_key(size): parse_amount(amount) for size, amount in given.items()}


def _parse_size_key(size: object) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"{size!r} is not a world size; expected ints from 1 on as keys")
    return size


def resolve_value(value: Value, spec: WorldSpec, parse_amount: ParseAmount) -> int:
    """Return the amount that `value` means in the world `spec`.

    Raises UsageError where a mapping lacks the size, and where a callable raises or returns what
    is no amount.
    """
    if isinstance(value, Mapping):
        if spec.size not in value:
            raise UsageError(
                f"there is no value for world size {spec.size}; add one, or narrow the marker "
                f"with world_size={sorted(value)}"
            )
        return value[spec.size]
    if callable(value):
        return _call(value, spec, parse_amount)
    return value


def _call(value: Callable[[WorldSpec], object], spec: WorldSpec, parse_amount: ParseAmount) -> int:
    try:
        returned = value(spec)
    except Exception as error:
        raise UsageError(
            f"the callable raised {type(error).__name__}: {error}, given {spec}"
        ) from error
    try:
        return parse_amount(returned)
    except UsageError as error:
        raise UsageError(f"the callable returned, given {spec}: {error}") from None


def parse_tolerance(given: object, parse_amount: ParseAmount) -> Tolerance:
    """Read a tolerance: an amount, or a share of what is expected, as a Fraction.

    Raises UsageError where it is neither, and where a share is not below the whole.
    """
    if isinstance(given, float):
        return _parse_share(str(given), whole=1)
    if isinstance(given, str) and (match := _PERCENT.fullmatch(given)):
        return _parse_share(match[1], whole=100)
    try:
        return parse_amount(given)
    except UsageError as error:
        raise UsageError(f"{error}, or a share such as {_SHARES}") from None


def _parse_share(number: str, whole: int) -> Fraction:
    if not 0 <= float(number) < whole:
        raise UsageError(f"a share lies between nothing and the whole; expected such as {_SHARES}")
    # From the text: 0.01 means one hundredth, not the binary fraction that is nearest to it.
    return Fraction(number) / whole


def tolerance_of(expected: int, tolerance: Tolerance) -> int:
    """Return the whole bytes or calls by which a figure may differ from `expected`."""
    return tolerance if isinstance(tolerance, int) else int(expected * tolerance)
