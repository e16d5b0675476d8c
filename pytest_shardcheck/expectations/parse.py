"""Marker arguments → expectation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_shardcheck.expectations.expectation import MEASURE_OF, Expectation
from pytest_shardcheck.expectations.measure import base, by_kind, parse_count
from pytest_shardcheck.expectations.narrowing import (
    Narrowing,
    parse_device,
    parse_group,
    parse_phase,
    parse_rank,
    parse_region,
    parse_world_size,
)
from pytest_shardcheck.expectations.usage import Site, suggestion
from pytest_shardcheck.expectations.values import Tolerance, Value, parse_tolerance, parse_value
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_T = TypeVar("_T")

# Argument of a marker → field of a Narrowing, and how it is read.
_NARROWINGS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "rank": ("ranks", parse_rank),
    "world_size": ("world_sizes", parse_world_size),
    "region": ("region", parse_region),
    "phase": ("phase", parse_phase),
    "group": ("group", parse_group),
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
    values = {**_zeros(site, given), **_values(site, given)}
    expectation = Expectation(
        marker=marker,
        values=values,
        narrowing=_narrowing(site, given),
        tolerance=_tolerance(site, given, values),
        level=level,
        where=where,
    )
    if not expectation.values:
        raise site.error(f"names nothing to judge: {_accepted(marker)}")
    _check_phase(expectation)
    return expectation


def _name_positional(
    site: Site, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    name = MEASURE_OF[site.marker].positional
    if args and not name:
        raise site.error(f"takes no positional value; given {args!r}. {_accepted(site.marker)}")
    if len(args) > 1 or (args and name in kwargs):
        raise site.error(
            f"takes one positional value, its {name}; given {args!r}. Name the others: "
            f"{_accepted(site.marker)}"
        )
    return {**({name: args[0]} if args else {}), **kwargs}


def _check_known(site: Site, argument: str, given: object) -> None:
    measure = MEASURE_OF[site.marker]
    known = (*measure.accepted_by(site.marker), *measure.narrowings, *_options(site.marker))
    if argument in known:
        return
    if argument == "tolerance":
        exact = f"use the exact {measure.noun}(...)"
        raise site.error_at(argument, given, f"a ceiling has no tolerance; raise it, or {exact}")
    if argument in measure.ceilings:
        problem = f"only the ceiling max_{measure.noun} judges {argument}"
    else:
        problem = f"there is no argument {argument!r}{suggestion(argument, known)}"
    raise site.error_at(argument, given, f"{problem}; {_accepted(site.marker)}")


def _options(marker: str) -> tuple[str, ...]:
    measure = MEASURE_OF[marker]
    if marker != measure.noun:
        return ()
    return ("tolerance", "ignore") if measure.closed else ("tolerance",)


def _accepted(marker: str) -> str:
    measure = MEASURE_OF[marker]
    options = [f"{name}=" for name in (*measure.narrowings, *_options(marker))]
    return f"it judges {', '.join(measure.accepted_by(marker))}, and takes {', '.join(options)}"


def _check_phase(expectation: Expectation) -> None:
    if expectation.narrowing.phase is None:
        return
    accepted = expectation.measure.in_phases
    for argument in expectation.values:
        if base(argument) not in accepted:
            raise expectation.site.error_at(
                "phase",
                expectation.narrowing.phase,
                f"a phase narrows {', '.join(accepted)}; {argument} is one figure a region",
            )


def _zeros(site: Site, given: Mapping[str, object]) -> dict[str, Value]:
    """Return what an exact marker that is closed expects of the kinds that it does not name."""
    measure = MEASURE_OF[site.marker]
    if site.marker != measure.noun or not measure.closed:
        return {}

    def parse(ignored: object) -> tuple[str, ...]:
        return _kinds(ignored, measure.closed)

    ignored = _parsed(site, "ignore", given["ignore"], parse) if "ignore" in given else ()
    if both := [kind for kind in ignored if kind in given]:
        problem = f"{both[0]} is also given a value; a kind is ignored or counted"
        raise site.error_at("ignore", given["ignore"], problem)
    return {kind: 0 for kind in measure.closed if kind not in ignored}


def _kinds(given: object, known: Sequence[str]) -> tuple[str, ...]:
    several = (given,) if isinstance(given, str) else given
    if not isinstance(several, tuple | list | set | frozenset) or not several:
        raise UsageError(f"{given!r} names no kinds; expected such as ('barrier',)")
    for kind in several:
        _check_kind(kind, known)
    return tuple(several)


def _check_kind(kind: object, known: Sequence[str]) -> None:
    if kind not in known:
        hint = suggestion(kind, known) if isinstance(kind, str) else ""
        raise UsageError(f"there is no kind {kind!r}{hint}; there are {', '.join(known)}")


def _values(site: Site, given: Mapping[str, object]) -> dict[str, Value]:
    measure = MEASURE_OF[site.marker]
    values: dict[str, Value] = {}
    for argument in measure.accepted_by(site.marker):
        if argument in given:
            values |= _values_of(site, argument, given[argument])
    return values


def _values_of(site: Site, argument: str, given: object) -> dict[str, Value]:
    """Read one argument: a value, or where the measure has kinds a mapping of kinds to values."""
    measure = MEASURE_OF[site.marker]

    def parse(value: object) -> Value:
        return parse_value(value, measure.parse_amount(argument))

    def parse_kinds(kinds: object) -> dict[str, Value]:
        assert isinstance(kinds, Mapping)
        for kind in kinds:
            _check_kind(kind, measure.closed)
        return {by_kind(argument, kind): parse(value) for kind, value in kinds.items()}

    if argument in measure.by_kind and isinstance(given, Mapping) and _names_kinds(given):
        return _parsed(site, argument, given, parse_kinds)
    return {argument: _parsed(site, argument, given, parse)}


def _names_kinds(given: Mapping[object, object]) -> bool:
    # The other mapping that an argument may be given is from world sizes, which are ints.
    return any(isinstance(key, str) for key in given)


def _narrowing(site: Site, given: Mapping[str, object]) -> Narrowing:
    fields = {
        field: _parsed(site, argument, given[argument], parse)
        for argument, (field, parse) in _NARROWINGS.items()
        if argument in given
    }
    return Narrowing(**fields)


def _tolerance(site: Site, given: Mapping[str, object], arguments: Iterable[str]) -> Tolerance:
    if "tolerance" not in given:
        return 0
    measure = MEASURE_OF[site.marker]
    counted = any(measure.unit(argument) != "bytes" for argument in arguments)

    def parse(value: object) -> Tolerance:
        return parse_tolerance(value, parse_count if counted else parse_size)

    return _parsed(site, "tolerance", given["tolerance"], parse)


def _parsed(site: Site, argument: str, given: object, parse: Callable[[object], _T]) -> _T:
    try:
        return parse(given)
    except UsageError as error:
        raise site.error_at(argument, given, error) from None
