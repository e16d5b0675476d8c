"""Count bytes of tensors so that every byte of every storage counts once."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from ._torch_private import storage_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch
    from torch import Tensor

MAX_RUNS = 65_536


class ByteRanges:
    """The byte ranges covered so far, per storage.

    A tensor counts the bytes that its elements cover: not its whole storage (a gradient may be a
    view of a bucket), nothing of a storage that was resized to 0, one row where it is expanded.

    Limits: a tensor of more than 65,536 separate runs (a strided slice of a large matrix) counts
    its own bytes as one run, so its overlap with other views of that storage is a guess. Two
    storages made over the same memory (`torch.from_numpy` twice) count twice.
    """

    def __init__(self) -> None:
        """Begin with nothing covered."""
        self._storages: dict[int, tuple[torch.UntypedStorage, _Intervals]] = {}

    def add(self, tensor: Tensor) -> int:
        """Cover the tensor's bytes and return how many of them are new, in bytes."""
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        known = self._storages.get(key)
        if known is None:
            # The storage is kept, or a freed one's key could come back while we count.
            known = self._storages[key] = (storage, _Intervals())
        intervals, limit = known[1], storage.nbytes()
        return sum(intervals.add(start, min(end, limit)) for start, end in runs(tensor))


class _Intervals:
    """Disjoint half-open intervals, sorted."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> int:
        """Add [start, end) and return how much of it was not covered before."""
        if start >= end:
            return 0
        first = bisect_left(self._ends, start)
        if first < len(self._ends) and self._starts[first] <= start and end <= self._ends[first]:
            return 0
        last = bisect_right(self._starts, end)
        if first == last:
            self._starts.insert(first, start)
            self._ends.insert(first, end)
            return end - start
        touched = list(zip(self._starts[first:last], self._ends[first:last], strict=True))
        covered = sum(min(e, end) - max(s, start) for s, e in touched)
        self._starts[first:last] = [min([start, *(s for s, _ in touched)])]
        self._ends[first:last] = [max([end, *(e for _, e in touched)])]
        return end - start - covered


def runs(tensor: Tensor) -> Iterable[tuple[int, int]]:
    """Return the byte ranges [start, end) of the tensor's elements within its storage."""
    if tensor.numel() == 0:
        return ()
    item = int(tensor.element_size())
    offset = int(tensor.storage_offset()) * item
    if tensor.is_contiguous():  # as nearly all are
        return ((offset, offset + int(tensor.numel()) * item),)
    return _strided_runs(tensor, offset, item)


def _strided_runs(tensor: Tensor, offset: int, item: int) -> Iterator[tuple[int, int]]:
    run, outer = innermost_run(tensor)
    if math.prod(size for _, size in outer) > MAX_RUNS:
        run, outer = run * math.prod(size for _, size in outer), []
    for steps in itertools.product(*(range(0, step * size, step) for step, size in outer)):
        start = int(offset + sum(steps) * item)
        yield start, start + run * item


def innermost_run(tensor: Tensor) -> tuple[int, list[tuple[int, int]]]:
    """Return the contiguous run, and (stride, size) of the dimensions outside it, in elements."""
    run = 1
    outer: list[tuple[int, int]] = []
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1 or step == 0:
            continue
        if not outer and step <= run:
            run += (size - 1) * step
        else:
            outer.append((step, size))
    return run, outer
