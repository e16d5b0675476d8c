"""The smallest world that fits under a limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_shardcheck.plan.closed_form import ClosedForm
from pytest_shardcheck.plan.footprint import Footprint
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.plain import Plain
from pytest_shardcheck.vocabulary.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_shardcheck.plan.footprint import Estimate, ShrinkingEstimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Plain):
    """The smallest world that fits, or why there is none.

    `fits` is its footprint, None where no world fits. `least` is the smallest footprint there is:
    what stays on every GPU however many there are, where no world fits. `limit` is in bytes.
    `shard` is set where an HSDP world does not fit: the smallest number of shards that would.
    """

    limit: int
    fits: Footprint | None
    least: Footprint
    shard: int | None = None

    @property
    def world(self) -> int | None:
        """Return the smallest world, None where none fits."""
        return None if self.fits is None else self.fits.world


def smallest_world(estimate: ShrinkingEstimate, *, limit: int | str) -> Answer:
    """Find the smallest world in which every GPU holds at most `limit`, however large it is.

    Args:
        estimate: a `ClosedForm`, or another estimate that never grows with the world.
        limit: bytes, or a size with a unit such as "80 GB" or "80 GiB".

    Raises:
        UsageError: the limit is no size.
    """
    ceiling = _ceiling(limit)
    least = estimate.footprint(estimate.most)
    if least.total > ceiling:
        return Answer(
            limit=ceiling, fits=None, least=least, shard=_shard_that_fits(estimate, ceiling)
        )
    # It never grows: halve what is left of the multiples until one stands.
    below, enough = 0, estimate.most // estimate.step
    while enough - below > 1:
        middle = (below + enough) // 2
        if estimate.footprint(middle * estimate.step).total <= ceiling:
            enough = middle
        else:
            below = middle
    return Answer(limit=ceiling, fits=estimate.footprint(enough * estimate.step), least=least)


def first_that_fits(estimate: Estimate, *, limit: int | str, worlds: Sequence[int]) -> Answer:
    """Find the smallest of `worlds` that fits, trying each in order until one does.

    For estimates that are not known to shrink, or whose every footprint takes seconds.

    Raises:
        UsageError: the limit is no size, or `worlds` is empty.
    """
    ceiling = _ceiling(limit)
    tried: list[Footprint] = []
    for world in sorted(set(worlds)):
        tried.append(estimate.footprint(world))
        if tried[-1].total <= ceiling:
            break
    return _answer_of(tried, ceiling)


def _answer_of(tried: Sequence[Footprint], ceiling: int) -> Answer:
    if not tried:
        raise UsageError("there is no world to try; expected at least one size")
    least = min(tried, key=lambda one: one.total)
    fits = next((one for one in tried if one.total <= ceiling), None)
    return Answer(limit=ceiling, fits=fits, least=least)


def _ceiling(limit: int | str) -> int:
    try:
        ceiling = parse_size(limit)
    except UsageError as error:
        raise UsageError(f"limit: {error}") from None
    if not ceiling:
        raise UsageError(f"limit: {limit} is no memory; expected a size above 0")
    return ceiling


def _shard_that_fits(estimate: ShrinkingEstimate, ceiling: int) -> int | None:
    if not (isinstance(estimate, ClosedForm) and estimate.hybrid):
        return None
    alone = smallest_world(estimate.sharded_alone, limit=ceiling)
    return None if alone.fits is None else alone.fits.shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Plain):
    """One way to shard: its answer, and what it takes in some worlds.

    `variant` tells plans of one name apart, such as "checkpointing 2". It is the same plain data
    whether a formula or a simulation made it: tables and charts know no other.
    """

    name: str
    variant: str = ""
    answer: Answer
    footprints: tuple[Footprint, ...]

    def at(self, world: int) -> Footprint | None:
        """Return the footprint in `world`, None where there is none."""
        return next((one for one in self.footprints if one.world == world), None)


def plan_closed_form(
    estimate: ShrinkingEstimate,
    *,
    limit: int | str,
    worlds: Sequence[int] = (),
    variant: str = "",
) -> Plan:
    """Answer for one way to shard, with its footprints in `worlds`, by arithmetic.

    Raises:
        UsageError: the limit is no size, or one of the worlds can't be.
    """
    return Plan(
        name=estimate.name,
        variant=variant,
        answer=smallest_world(estimate, limit=limit),
        footprints=tuple(estimate.footprint(world) for world in sorted(set(worlds))),
    )


def plan_simulated(estimate: Estimate, *, limit: int | str, worlds: Sequence[int]) -> Plan:
    """Answer for one way to shard by trying all of `worlds`, smallest first.

    Raises:
        UsageError: the limit is no size, there is no world to try, or one of them can't be.
    """
    ceiling = _ceiling(limit)
    tried = tuple(estimate.footprint(world) for world in sorted(set(worlds)))
    return Plan(name=estimate.name, answer=_answer_of(tried, ceiling), footprints=tried)
