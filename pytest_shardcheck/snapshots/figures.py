"""What a snapshot keeps of a reading, and of any other value. Used in ranks.

Kept are the numbers that a person reviews; nothing that depends on the machine, a path, a line, the
time or an order of hashes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.memory import LIVE_CATEGORIES
from pytest_shardcheck.vocabulary.ranks import fold_numbers
from pytest_shardcheck.vocabulary.readings import CATEGORIES, Reading

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading
    from pytest_shardcheck.vocabulary.memory import MemoryReading
    from pytest_shardcheck.vocabulary.saved import SavedReading

COUNTS: Final = ("count", "packed", "calls")
_SAVED: Final = ("packed", "count", "bytes", "storage_bytes", "at_forward_end")
# What a reading may have and this one may lack; groups and operations have names of their own.
READING_PATHS: Final = (
    *(
        (*where, *figure)
        for where in (("memory",), ("memory", "on", "cpu"), ("memory", "on", "cuda"))
        for figure in (
            *(("state", name) for name in CATEGORIES),
            *(("at_peak", name) for name in LIVE_CATEGORIES),
            *(("live",), ("peak",)),
        )
    ),
    *((name,) for name in ("collectives", "count", "bytes", "wire_bytes", "calls")),
    *(("saved", name) for name in _SAVED),
)
READING_FIELDS: Final = frozenset(name for path in READING_PATHS for name in path)


def figures_of(reading: Reading) -> dict[str, Any]:
    """Return what is kept of a reading; what was not measured is absent.

    Raises:
        UsageError: an operation that we don't know reached a process group.
    """
    kept = {
        "memory": _memory(reading.memory),
        "collectives": _collectives(reading.collectives),
        "saved": _saved(reading.saved),
    }
    return {name: figures for name, figures in kept.items() if figures}


def _memory(memory: MemoryReading) -> dict[str, Any]:
    kept = _on(memory, memory.device)
    own = _kind(memory.device)
    others = {_kind(device) for device in (*memory.by_device, *memory.live_by_device)} - {own}
    elsewhere = {kind: figures for kind in sorted(others) if _any(figures := _on(memory, kind))}
    return {**kept, "on": elsewhere} if elsewhere else kept


def _on(memory: MemoryReading, device: str) -> dict[str, Any]:
    held, live = memory.on(device), memory.live_on(device)
    state = {name: getattr(held, name) for name in CATEGORIES}
    kept: dict[str, Any] = {"state": {k: v for k, v in state.items() if v is not None}}
    if live is not None:
        at_peak = {name: size for name, size in live.at_peak.items() if size}
        kept |= {"live": live.end, "peak": live.peak, "at_peak": at_peak}
    return {name: figures for name, figures in kept.items() if figures != {}}


def _any(figures: Mapping[str, Any]) -> bool:
    return any(_any(f) if isinstance(f, Mapping) else f for f in figures.values())


def _kind(device: str) -> str:
    # Which index a rank has is not what a snapshot is about, and would keep ranks apart.
    return device.partition(":")[0]


def _collectives(collectives: CollectivesReading) -> dict[str, Any]:
    _ = collectives.total  # raises where no count can be trusted
    calls: dict[str, dict[str, list[Call]]] = {}
    for call in collectives.calls:
        calls.setdefault(group_label(call), {}).setdefault(call.operation, []).append(call)
    return {
        group: {operation: _volume(its) for operation, its in of_group.items()}
        for group, of_group in calls.items()
    }


def group_label(call: Call) -> str:
    """Name the group of a call: by its first name, or its ranks where it has none of its own.

    torch's own numbers of groups depend on what else was made before.
    """
    return call.axes[0] if call.axes else f"[{fold_numbers(call.ranks)}]"


def _volume(calls: Iterable[Call]) -> dict[str, Any]:
    """Sum calls; `calls` maps phase and payload to the modules that called, once for each call."""
    by_phase: dict[str, dict[str, list[str]]] = {}
    for call in (calls := list(calls)):
        by_phase.setdefault(call.phase, {}).setdefault(str(call.bytes), []).append(call.module)
    for sizes in by_phase.values():
        for modules in sizes.values():
            modules.sort(key=natural)
    return {
        "count": len(calls),
        "bytes": sum(call.bytes for call in calls),
        "wire_bytes": sum(call.wire_bytes for call in calls),
        "calls": by_phase,
    }


def natural(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts "layers.2" before "layers.10"."""
    parts = re.split(r"([0-9]+)", text)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _saved(saved: SavedReading | None) -> dict[str, Any]:
    # As the markers: where hooks could not see, or came too late, nothing was measured.
    if saved is None or not saved.measured:
        return {}
    return {name: getattr(saved, name) for name in _SAVED}


def plain_value(value: object) -> Any:
    """Return a value as JSON has it: tuples become lists.

    Raises:
        UsageError: it is no plain data, or holds a number that JSON does not have.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float) and type(value) in (int, float):
        if not math.isfinite(value):
            raise UsageError(f"shardcheck.snapshot: {value} is in the value; finite numbers are")
        return value
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise UsageError(f"shardcheck.snapshot: the key {wrong[0]!r} is no str")
        return {key: plain_value(value[key]) for key in sorted(value)}
    raise UsageError(
        f"shardcheck.snapshot: a {type(value).__name__} can't be kept; a reading is accepted, or "
        "plain data (numbers, str, lists, dicts with str as keys, None): for a tensor .tolist()"
    )
