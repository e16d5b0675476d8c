"""What one pair of markers can judge: one `Measure` a noun, one noun a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_shardcheck.expectations.narrowing import Narrowing
    from pytest_shardcheck.vocabulary.readings import Reading
    from pytest_shardcheck.vocabulary.verdicts import Breakdown, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Hold what a reading has for one argument.

    `missing` says why an amount of None is None. `unmatched` says that a narrowing chose nothing of
    this rank, and what there was; `outside` tells that the rank is in no group of that name.
    """

    amount: int | None
    breakdown: Breakdown = None
    missing: str = ""
    unmatched: str = ""
    outside: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Describe the markers `noun` (exact) and `max_noun` (a ceiling).

    `arguments` have their units; those in `ceilings` are accepted by `max_noun` only, and those in
    `by_kind` also as a mapping of a kind to an amount. `positional` is the argument that a bare
    value means, "" for none. A phase narrows the arguments `in_phases`. The exact marker is
    `closed` where what it doesn't name must be zero. A ceiling above zero on an argument in
    `vacuous_at_zero` has judged nothing where the figure was 0 on every rank.
    """

    noun: str
    arguments: Mapping[str, Unit]
    narrowings: tuple[str, ...]
    read: Callable[[Reading, str, Narrowing], Figure]
    in_phases: tuple[str, ...]
    positional: str = ""
    ceilings: tuple[str, ...] = ()
    by_kind: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    vacuous_at_zero: tuple[str, ...] = ()

    def accepted_by(self, marker: str) -> tuple[str, ...]:
        """Return the arguments that `noun` or `max_noun` judges."""
        exact = marker == self.noun
        return tuple(name for name in self.arguments if not (exact and name in self.ceilings))

    def unit(self, argument: str) -> Unit:
        """Return the unit of an argument, also of one by kind ("bytes[all_reduce]")."""
        return self.arguments[base(argument)]

    def parse_amount(self, argument: str) -> Callable[[object], int]:
        """Return what reads an amount of an argument."""
        return parse_size if self.unit(argument) == "bytes" else parse_count


def unmatched_phase(reading: Reading, narrowing: Narrowing) -> str:
    """Say that the phase of a narrowing never ran; "" where it did, or none is named."""
    if narrowing.phase is None or narrowing.phase in reading.phases:
        return ""
    there = ", ".join(map(repr, reading.phases)) or "none"
    return f"no {narrowing.phase} ran; the phases were {there}"


def by_kind(argument: str, kind: str) -> str:
    """Name an argument that speaks of one kind: "bytes[all_reduce]"."""
    return f"{argument}[{kind}]"


def base(argument: str) -> str:
    """Return the argument without its kind."""
    return argument.partition("[")[0]


def kind_of(argument: str) -> str:
    """Return the kind that an argument speaks of, "" for all."""
    return argument.partition("[")[2].rstrip("]")


def parse_count(given: object) -> int:
    """Read a count. Raises UsageError where it is no int, or negative."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 0:
        raise UsageError(f"{given!r} is no count; expected an int from 0 on")
    return given
