"""Which of a test's expectations hold in one of its worlds, with their values worked out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from pytest_shardcheck.expectations.narrowing import Narrowing
from pytest_shardcheck.expectations.values import resolve_value
from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.expectations.expectation import Expectation
    from pytest_shardcheck.vocabulary.specs import WorldSpec

_Claim: TypeAlias = tuple[str, str, Narrowing]


def check_world_sizes(expectations: Iterable[Expectation], sizes: Iterable[int]) -> None:
    """Raise UsageError where a `world_size=` is none of the `sizes` that the test runs at."""
    known = sorted(set(sizes))
    for expectation in expectations:
        wanted = expectation.narrowing.world_sizes
        if wanted is not None and not set(wanted) & set(known):
            problem = f"the test runs at world size {', '.join(map(str, known))} and never there"
            given = wanted[0] if len(wanted) == 1 else list(wanted)
            raise expectation.site.error_at("world_size", given, problem)


def applicable(expectations: Sequence[Expectation], spec: WorldSpec) -> list[Expectation]:
    """Return the expectations that hold in the world `spec`, their values as ints.

    Per argument and narrowing the closest marker wins; otherwise all apply. Raises UsageError
    where a value can't be worked out for this world.
    """
    here = [expectation for expectation in expectations if _holds_in(expectation, spec)]
    closest: dict[_Claim, int] = {}
    for expectation in here:
        for claim in _claims(expectation):
            closest[claim] = min(closest.get(claim, expectation.level), expectation.level)
    kept = (_closest_part(expectation, closest) for expectation in here)
    return [_resolved(expectation, spec) for expectation in kept if expectation.values]


def _holds_in(expectation: Expectation, spec: WorldSpec) -> bool:
    sizes = expectation.narrowing.world_sizes
    return sizes is None or spec.size in sizes


def _claims(expectation: Expectation) -> list[_Claim]:
    return [
        (expectation.marker, argument, expectation.narrowing) for argument in expectation.values
    ]


def _closest_part(expectation: Expectation, closest: dict[_Claim, int]) -> Expectation:
    values = {
        argument: value
        for argument, value in expectation.values.items()
        if closest[expectation.marker, argument, expectation.narrowing] == expectation.level
    }
    return replace(expectation, values=values)


def _resolved(expectation: Expectation, spec: WorldSpec) -> Expectation:
    values = {argument: _amount(expectation, argument, spec) for argument in expectation.values}
    return replace(expectation, values=values)


def _amount(expectation: Expectation, argument: str, spec: WorldSpec) -> int:
    value = expectation.values[argument]
    try:
        return resolve_value(value, spec, expectation.measure.parse_amount(argument))
    except UsageError as error:
        raise expectation.site.error_at(argument, value, error) from error.__cause__
