"""State at rest: bytes of parameters, gradients, buffers and optimizer state that a rank holds.

Every category counts the bytes that its tensors' elements cover, each byte of a storage once:

- of a DTensor (FSDP2, tensor parallelism) its local shard, and not the rows by which FSDP2 pads
  an uneven shard: gradients and optimizer state have no such rows, and `to_local()` shows none.
  The live counter counts storages and does see that padding.
- of FSDP1 the flat parameter with its padding, since its gradient and optimizer state have it too;
  of both FSDPs also the unsharded parameters, as long as they are held.
- of gradients their own bytes, not the DDP bucket that they are views of.
- of an optimizer its state and that of the optimizers it wraps (`ZeroRedundancyOptimizer.optim`),
  and, where modules are watched too, the parameters that it holds beyond theirs: fp32 master
  copies, or full parameters of an optimizer that was built before sharding.
- of bare tensors: parameters, leaves that require a gradient, and their gradients; others are
  buffers.
- of frameworks what `pytest_shardcheck_held` hooks say: DeepSpeed's partitions and master copies.

Bytes shared between categories belong to the first of params, grads, buffers, optimizer.

Limits: state that an optimizer keeps outside `.state`, as python numbers, or in objects that are
neither mappings, sequences nor dataclasses, is not seen, unless a framework's hook shows it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch

from pytest_shardcheck.vocabulary.readings import StateBytes

from .byte_ranges import ByteRanges
from .holdings import Holdings, grads_of
from .tensors import plain_tensors
from .watched import Watched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import Tensor

__all__ = ["StateAtRest", "Watched", "measure_state", "with_larger_grads"]

_MODULE_CATEGORIES = ("params", "grads", "buffers")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateAtRest:
    """State of the watched things at one moment, in bytes."""

    by_device: dict[str, StateBytes] = field(default_factory=dict)
    parts: dict[str, StateBytes] = field(default_factory=dict)


def measure_state(
    watched: Watched, device: str, *, grads_only: bool = False, held: Holdings | None = None
) -> StateAtRest:
    """Measure what the watched things hold now.

    Args:
        watched: what to measure.
        device: the rank's device, which is listed even where nothing lies on it.
        grads_only: leave the optimizers' state out, for who only looks at gradients.
        held: what was found in `watched` just now, where somebody has looked already.

    Returns:
        bytes per device, and per named thing over all devices. A category that was not watched
        (no module or tensor for params, grads and buffers; no optimizer for optimizer) is None.

    Raises:
        UsageError: a tensor whose storage can't be read.
    """
    everything = held or Holdings(watched.open())
    total = _count(everything, everything, grads_only=grads_only)
    parts = {
        name: _count(Holdings(part), everything, grads_only=grads_only)
        for name, part in watched.open_named().items()
    }
    return StateAtRest(
        by_device={name: total.on(name) for name in dict.fromkeys([device, *total.devices()])},
        parts={name: count.over_all_devices() for name, count in parts.items()},
    )


def with_larger_grads(state: StateAtRest, other: StateAtRest) -> StateAtRest:
    """Return `state` with the larger gradients of both, device by device and part by part."""
    return StateAtRest(
        by_device=_larger_grads(state.by_device, other.by_device),
        parts=_larger_grads(state.parts, other.parts),
    )


def _larger_grads(
    state: Mapping[str, StateBytes], other: Mapping[str, StateBytes]
) -> dict[str, StateBytes]:
    result = {}
    for name in dict.fromkeys([*state, *other]):
        # A device that held something only then holds nothing now.
        now = state[name] if name in state else _zeros(other[name])
        sizes = [now.grads, other[name].grads if name in other else None]
        grads = max((size for size in sizes if size is not None), default=None)
        result[name] = replace(now, grads=grads)
    return result


def _zeros(like: StateBytes) -> StateBytes:
    names = [item.name for item in fields(like)]
    return StateBytes(**{name: 0 for name in names if getattr(like, name) is not None})


class _Count:
    """Bytes per category and device, with the byte ranges that they cover."""

    def __init__(self, categories: Iterable[str]) -> None:
        self._ranges = ByteRanges()
        self._bytes: dict[str, dict[torch.device, int]] = {
            name: defaultdict(int) for name in categories
        }
        self._own_params: dict[torch.device, int] = {}

    def add(self, category: str, tensors: Iterable[Tensor]) -> None:
        """Count tensors; in a category that is not counted they are only marked as seen."""
        sizes = self._bytes.get(category)
        for tensor in chain.from_iterable(map(plain_tensors, tensors)):
            new = self._ranges.add(tensor)
            if sizes is not None:
                sizes[tensor.device] += new

    def note_own_params(self) -> None:
        """Take what the optimizers hold so far for parameters of no watched module."""
        self._own_params = dict(self._bytes["optimizer"])

    def devices(self) -> list[str]:
        return sorted(map(str, set().union(*self._bytes.values())))

    def on(self, device: str) -> StateBytes:
        key = torch.device(device)
        sizes = {name: sizes.get(key, 0) for name, sizes in self._bytes.items()}
        return StateBytes(**sizes, own_params=self._own_params.get(key) or None)

    def over_all_devices(self) -> StateBytes:
        sizes = {name: sum(sizes.values()) for name, sizes in self._bytes.items()}
        return StateBytes(**sizes, own_params=sum(self._own_params.values()) or None)


def _count(part: Holdings, everything: Holdings, *, grads_only: bool) -> _Count:
    """Count a part; its optimizers' parameters are held against those of everything watched."""
    categories = [*_MODULE_CATEGORIES] if part.has_tensors else []
    count = _Count([*categories, *(["optimizer"] if part.has_optimizer_state else [])])
    _add_modules(count, part, _MODULE_CATEGORIES)
    if part.has_optimizer_state:
        _add_optimizers(count, part, everything)
        if not grads_only:
            count.add("optimizer", part.optimizer_state)
    return count


def _add_modules(count: _Count, part: Holdings, names: tuple[str, str, str]) -> None:
    params, grads, buffers = names
    count.add(params, part.params)
    count.add(grads, part.grads)
    count.add(buffers, part.buffers)


def _add_optimizers(count: _Count, part: Holdings, everything: Holdings) -> None:
    # Without a module nothing says which of its parameters are the optimizer's own.
    if everything.has_tensors:
        if part is not everything:
            _add_modules(count, everything, ("", "", ""))
        count.add("optimizer", part.group_params)
        count.note_own_params()
        count.add("grads", grads_of(part.group_params))
