"""What a figure is made of → the lines below it in a failure."""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading
from pytest_shardcheck.vocabulary.memory import (
    CATEGORIES,
    Crossing,
    LiveBytes,
    StateBytes,
    TensorRecord,
)
from pytest_shardcheck.vocabulary.ranks import fold_numbers
from pytest_shardcheck.vocabulary.saved import SavedReading
from pytest_shardcheck.vocabulary.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_LINES: Final = 10
_MOST_NAMES: Final = 4


@singledispatch
def breakdown_lines(breakdown: object, argument: str) -> list[str]:
    """Return what stands below a figure of `argument`; nothing where nothing is known."""
    del breakdown, argument
    return []


@breakdown_lines.register
def _of_state(state: StateBytes, argument: str) -> list[str]:
    del argument
    held = ((category, getattr(state, category)) for category in CATEGORIES)
    lines = [
        ", ".join(
            f"{category} {'not watched' if size is None else format_bytes(size)}"
            for category, size in held
        )
    ]
    if state.own_params:
        lines.append(
            f"of optimizer, {format_bytes(state.own_params)} are parameters that no watched module "
            "has: master copies, or an optimizer that was built before its model was sharded"
        )
    return lines


@breakdown_lines.register
def _of_live(live: LiveBytes, argument: str) -> list[str]:
    if argument in ("growth", "live"):
        return ["left behind:", *_records(live.grown)] if live.grown else []
    lines = []
    if argument == "allocated":
        theirs = "kernels hold what is above it inside an operator"
        lines.append(f"the counter's peak: {format_bytes(live.peak)}; {theirs}")
    if live.at_peak:
        lines.append(f"at the peak: {_sizes(live.at_peak)}")
    # The crossing is the counter's: where the allocator's peak was, nobody knows.
    if live.first_crossing is not None and argument != "allocated":
        lines.append(_crossing(live.first_crossing))
    if live.largest:
        lines += ["the largest:", *_records(live.largest)]
    return lines


@breakdown_lines.register
def _of_collectives(collectives: CollectivesReading, argument: str) -> list[str]:
    del argument
    alike: dict[tuple[object, ...], list[Call]] = {}
    for call in collectives.calls:
        alike.setdefault((*_words(call), call.line), []).append(call)
    lines = [_calls(calls) for calls in alike.values()]
    return _cut(lines, "kinds of calls")


@breakdown_lines.register
def _of_saved(saved: SavedReading, argument: str) -> list[str]:
    lines = [f"at the end of forward: {format_bytes(saved.at_forward_end)}"]
    if saved.modules and argument in ("bytes", "storage_bytes"):
        largest = sorted(saved.modules.items(), key=lambda item: (-item[1], item[0]))
        lines.append(f"at the most bytes, by module: {_sizes(dict(largest[:_MOST_LINES]))}")
    return lines


def _sizes(sizes: Mapping[str, int]) -> str:
    held = [f"{name or '(no module)'} {format_bytes(size)}" for name, size in sizes.items() if size]
    return ", ".join(held) or "nothing"


def _records(records: Sequence[TensorRecord]) -> list[str]:
    return _cut([f"  {_record(record)}" for record in records], "kinds of tensors")


def _record(record: TensorRecord) -> str:
    count = f"{record.count} x " if record.count > 1 else ""
    what = f"{count}{format_bytes(record.bytes)} {record.dtype} {list(record.shape)}"
    steps = f"in step {fold_numbers(record.steps)}" if record.steps else ""
    name = f"({record.name})" if record.name else ""
    parts = (f"{what} {record.category} {name}".rstrip(), _where(record), steps)
    return ", ".join(part for part in parts if part)


def _crossing(crossing: Crossing) -> str:
    if not crossing.operator:
        return f"above it when the region began: {format_bytes(crossing.live)} were alive"
    return (
        f"first above it: {crossing.operator} in {crossing.phase}, {format_bytes(crossing.live)} "
        f"then alive, {_where(crossing)}".rstrip(", ")
    )


def _where(place: TensorRecord | Crossing | Call) -> str:
    module = f"in {place.module}" if place.module else ""
    line = f"at {place.line}" if place.line else ""
    return " ".join(part for part in (module, line) if part)


def _words(call: Call) -> tuple[object, ...]:
    return (call.operation, call.group, call.dtype, call.shapes, call.bytes, call.peer, call.phase)


def _calls(calls: Sequence[Call]) -> str:
    call = calls[0]
    names = list(dict.fromkeys(each.module for each in calls if each.module))
    modules = f" in {_listed(names)}" if names else ""
    line = f" at {call.line}" if call.line else ""
    peer = "" if call.peer is None else f", peer {call.peer}"
    shapes = ", ".join(str(list(shape)) for shape in call.shapes)
    tensors = f" of {call.dtype} {shapes} ({format_bytes(call.bytes)})" if call.shapes else ""
    group = call.axes[0] if call.axes else call.group
    return (
        f"{len(calls)} x {call.operation}{tensors} in group {group!r}{peer}, {call.phase}"
        f"{modules}{line}"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_MOST_NAMES])
    rest = len(names) - _MOST_NAMES
    return f"{shown} and {rest} more" if rest > 0 else shown


def _cut(lines: list[str], what: str) -> list[str]:
    rest = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"and {rest} more {what}"] if rest > 0 else lines
