"""`memory` and `max_memory`: state at rest, live and peak memory, in bytes per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_shardcheck.expectations.measure import Figure, Measure, unmatched_phase
from pytest_shardcheck.vocabulary.readings import CATEGORIES, LiveBytes, Reading, StateBytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_shardcheck.expectations.narrowing import Narrowing
    from pytest_shardcheck.vocabulary.verdicts import Unit

_STATE = (*CATEGORIES, "state")
_ALLOCATOR = ("allocated", "reserved")
# Argument → attribute of LiveBytes.
_LIVE: Final = {
    "peak": "peak",
    "live": "end",
    "peak_above_start": "peak_above_start",
    "growth": "growth",
}
_ARGUMENTS: Final[Mapping[str, Unit]] = dict.fromkeys((*_LIVE, *_STATE, *_ALLOCATOR), "bytes")


def _read(reading: Reading, argument: str, narrowing: Narrowing) -> Figure:
    device = narrowing.device or reading.memory.device
    if argument in _LIVE:
        if unmatched := unmatched_phase(reading, narrowing):
            return Figure(amount=None, unmatched=unmatched)
        return _read_live(reading, argument, device, narrowing.phase)
    if argument in _ALLOCATOR:
        return _read_allocator(reading, argument, device)
    return _read_state(reading, argument, device)


def _read_state(reading: Reading, argument: str, device: str) -> Figure:
    held = reading.memory.on(device)
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


def _read_live(reading: Reading, argument: str, device: str, phase: str | None) -> Figure:
    memory = reading.memory
    if phase is not None:
        memory = reading.phases[phase].memory
    live = memory.live_on(device)
    if live is None:
        return Figure(amount=None, missing=memory.live_unmeasured or "live memory was not measured")
    return Figure(amount=_amount(live, argument), breakdown=live)


def _amount(live: LiveBytes, argument: str) -> int:
    amount: int = getattr(live, _LIVE[argument])
    return amount


def _read_allocator(reading: Reading, argument: str, device: str) -> Figure:
    memory = reading.memory
    on = memory.allocated_on if argument == "allocated" else memory.reserved_on
    peak = on(device)
    if peak is not None:
        # What the counter saw of it; what an allocator reserves is no tensor's.
        seen = memory.live_on(device) if argument == "allocated" else None
        return Figure(amount=peak, breakdown=seen)
    if argument == "reserved":
        kind = device.partition(":")[0]
        return Figure(amount=None, missing=f"only CUDA's allocator reserves memory, not {kind}'s")
    return Figure(
        amount=None,
        missing=(
            "the allocator was not followed; it is, from the test's setup on, where a marker above "
            "the test names allocated="
        ),
    )


MEMORY = Measure(
    noun="memory",
    arguments=_ARGUMENTS,
    narrowings=("rank", "world_size", "region", "phase", "device"),
    read=_read,
    in_phases=("peak", "live", "peak_above_start"),
    positional="peak",
    vacuous_at_zero=(*_STATE, *_ALLOCATOR, "peak", "live"),
)
