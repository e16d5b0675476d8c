"""`memory` and `max_memory`: state at rest, in bytes per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_shardcheck.expectations.measure import Figure, Measure
from pytest_shardcheck.vocabulary.readings import CATEGORIES, Reading, StateBytes
from pytest_shardcheck.vocabulary.units import parse_size

if TYPE_CHECKING:
    from pytest_shardcheck.expectations.narrowing import Narrowing

_ARGUMENTS = (*CATEGORIES, "state")


def _read(reading: Reading, argument: str, narrowing: Narrowing) -> Figure:
    held = reading.memory.on(narrowing.device or reading.memory.device)
    wanted = CATEGORIES if argument == "state" else (argument,)
    unwatched = [category for category in wanted if getattr(held, category) is None]
    if unwatched:
        return Figure(amount=None, breakdown=held, missing=_missing(reading, held, unwatched))
    return Figure(amount=getattr(held, argument), breakdown=held)


def _missing(reading: Reading, held: StateBytes, unwatched: list[str]) -> str:
    """Say what to watch; a sum that leaves out what nobody watched would look like a saving."""
    if reading.implicit and held.state is None:
        return (
            "the test opened no region, so nothing was watched; put the step inside "
            "`with shardcheck.measure(model, optimizer):`"
        )
    owners = dict.fromkeys(_owner(category) for category in unwatched)
    nothing = " and ".join(f"no {owner}" for owner in owners)
    return (
        f"{nothing} was watched, so {', '.join(unwatched)} can't be known; pass the "
        f"{' and the '.join(owners)} to shardcheck.measure(...)"
    )


def _owner(category: str) -> str:
    return "optimizer" if category == "optimizer" else "module"


MEMORY = Measure(
    noun="memory",
    arguments=_ARGUMENTS,
    narrowings=("rank", "world_size", "region", "device"),
    positional="peak",
    later=("peak", "live", "peak_above_start", "growth", "allocated", "reserved", "phase"),
    vacuous_at_zero=_ARGUMENTS,
    parse_amount=parse_size,
    read=_read,
)
