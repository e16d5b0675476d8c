"""Marker arguments → expectation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pytest_shardcheck.expectations.expectation import MEASURE_OF, Expectation
from pytest_shardcheck.expectations.narrowing import (
    Narrowing,
    parse_device,
    parse_rank,
    parse_region,
    parse_world_size,
)
from pytest_shardcheck.expectations.usage import Site, suggestion
from pytest_shardcheck.expectations.values import Tolerance, Value, parse_tolerance, parse_value
from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_T = TypeVar("_T")

# Argument of a marker → field of a Narrowing, and how it is read.
_NARROWINGS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "rank": ("ranks", parse_rank),
    "world_size": ("world_sizes", parse_world_size),
    "region": ("region", parse_region),
    "device": ("device", parse_device),
}


def parse_expectation(
    marker: str, args: Sequence[object], kwargs: Mapping[str, object], *, where: str, level: int
) -> Expectation:
    """Read a measuring marker, or a call of its function.

    Raises UsageError that names `where`, the marker, the argument, what was given and what is
    accepted.
    """
    site = Site(where, marker)
    given = _name_positional(site, args, kwargs)
    for argument in given:
        _check_known(site, argument, given[argument])
    expectation = Expectation(
        marker=marker,
        values=_values(site, given),
        narrowing=_narrowing(site, given),
        tolerance=_tolerance(site, given),
        level=level,
        where=where,
    )
    if not expectation.values:
        raise site.error(f"names nothing to judge: {_accepted(marker)}")
    return expectation


def _name_positional(
    site: Site, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    name = MEASURE_OF[site.marker].positional
    if len(args) > 1 or (args and name in kwargs):
        raise site.error(
            f"takes one positional value, its {name}; given {args!r}. Name the others: "
            f"{_accepted(site.marker)}"
        )
    return {**({name: args[0]} if args else {}), **kwargs}


def _check_known(site: Site, argument: str, given: object) -> None:
    measure = MEASURE_OF[site.marker]
    known = (*measure.arguments, *measure.narrowings, "tolerance")
    if argument in known:
        return
    if argument in measure.later:
        problem = f"{argument} is not measured by this version of pytest-shardcheck"
    else:
        problem = f"there is no argument {argument!r}{suggestion(argument, known)}"
    raise site.error_at(argument, given, f"{problem}; {_accepted(site.marker)}")


def _accepted(marker: str) -> str:
    measure = MEASURE_OF[marker]
    narrowings = ", ".join(f"{name}=" for name in measure.narrowings)
    tolerance = " and tolerance=" if marker == measure.noun else ""
    return f"it judges {', '.join(measure.arguments)}, and takes {narrowings}{tolerance}"


def _values(site: Site, given: Mapping[str, object]) -> dict[str, Value]:
    measure = MEASURE_OF[site.marker]

    def parse(value: object) -> Value:
        return parse_value(value, measure.parse_amount)

    return {
        argument: _parsed(site, argument, given[argument], parse)
        for argument in measure.arguments
        if argument in given
    }


def _narrowing(site: Site, given: Mapping[str, object]) -> Narrowing:
    fields = {
        field: _parsed(site, argument, given[argument], parse)
        for argument, (field, parse) in _NARROWINGS.items()
        if argument in given
    }
    return Narrowing(**fields)


def _tolerance(site: Site, given: Mapping[str, object]) -> Tolerance:
    if "tolerance" not in given:
        return 0
    noun = MEASURE_OF[site.marker].noun
    if site.marker != noun:
        problem = f"a ceiling has no tolerance; raise the ceiling, or use the exact {noun}(...)"
        raise site.error_at("tolerance", given["tolerance"], problem)
    return _parsed(site, "tolerance", given["tolerance"], parse_tolerance)


def _parsed(site: Site, argument: str, given: object, parse: Callable[[object], _T]) -> _T:
    try:
        return parse(given)
    except UsageError as error:
        raise site.error_at(argument, given, error) from None
