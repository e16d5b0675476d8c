"""Which ranks of a simulated world are simulated: few stand for all, and no marker is missed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.expectations.closeness import applicable
from pytest_shardcheck.expectations.narrowing import Indices

if TYPE_CHECKING:
    from pytest_shardcheck.expectations.expectation import Expectation
    from pytest_shardcheck.vocabulary.specs import WorldSpec

_OF_ALLOCATORS: Final = frozenset({"allocated", "reserved"})


def with_ranks(spec: WorldSpec, expectations: Sequence[Expectation]) -> WorldSpec:
    """Return the world with the ranks that are to run; a real one as it is.

    By default the first and the last; in any case every rank that an expectation names, and of
    those that it names as a stretch or by a mesh coordinate the first and the last.

    Raises:
        UsageError: an expectation judges what a simulated world has not.
    """
    if not spec.simulated:
        return spec
    _refuse_allocators(spec, expectations)
    ranks = (0, spec.size - 1) if spec.ranks is None else spec.ranks
    return replace(spec, ranks=tuple(sorted({*ranks, *_named(spec, expectations)})))


def _refuse_allocators(spec: WorldSpec, expectations: Iterable[Expectation]) -> None:
    for expectation in applicable(list(expectations), spec):
        for argument in sorted(_OF_ALLOCATORS & set(expectation.values)):
            raise expectation.site.error_at(
                argument,
                expectation.values[argument],
                f"nothing is allocated in a simulated world ({spec.id}); judge peak there, and "
                f"{argument} in real worlds, with world_size=",
            )


def _named(spec: WorldSpec, expectations: Iterable[Expectation]) -> Iterator[int]:
    for expectation in applicable(list(expectations), spec):
        choice = expectation.narrowing.ranks
        try:
            chosen = choice.select(spec) if choice is not None else ()
        except LookupError:  # a narrowing that matches nothing is the verdict's to tell
            continue
        yield from chosen if isinstance(choice, Indices) else (*chosen[:1], *chosen[-1:])
