"""Count the bytes of tensors that come and go so that every byte of every storage counts once.

`byte_ranges` answers the same question for tensors that only come. A step saves hundreds of
tensors, most of them whole storages, some twice: both are a dictionary look-up here. Views that
interleave (queries, keys and values of one projection; the time steps of a sequence) share one
comb of equal teeth, and are counted on one tooth.

Limits: a storage that is resized while tensors of it are held counts as it was when the first of
them came. A tensor of more than 65,536 separate runs counts its own bytes as one run where it
meets others of its storage that lie on another comb.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ._torch_private import storage_key
from .byte_ranges import MAX_RUNS, innermost_run, runs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

Outer = tuple[tuple[int, int], ...]  # (step, count) from the innermost, in bytes
Form = tuple[int, int, Outer]  # first byte, length of a run, how the run repeats
Part = tuple[int, int, tuple[Form, ...]]  # storage key, its bytes, what is covered of it

_CONTIGUOUS: Final[Outer] = ()


def part_of(tensor: Tensor) -> Part:
    """Return what a plain tensor covers of which storage."""
    storage = tensor.untyped_storage()
    limit = storage.nbytes()
    key = storage_key(storage)
    if not tensor.is_contiguous():
        return key, limit, _forms(tensor, limit)
    start, length = int(tensor.storage_offset()), int(tensor.nbytes)
    if start:
        start *= tensor.element_size()
    if start + length > limit:  # the storage was resized
        length = limit - start
    return key, limit, ((start, length, _CONTIGUOUS),) if length > 0 else ()


def _forms(tensor: Tensor, limit: int) -> tuple[Form, ...]:
    if not tensor.numel():
        return ()
    item = int(tensor.element_size())
    run, outer = innermost_run(tensor)
    teeth = _merged([(step * item, size) for step, size in outer])
    form = int(tensor.storage_offset()) * item, run * item, teeth
    if _end(form) <= limit and _is_comb(form):
        return (form,)
    clipped = ((first, min(last, limit)) for first, last in runs(tensor))
    return tuple((first, last - first, _CONTIGUOUS) for first, last in clipped if first < last)


def _merged(outer: list[tuple[int, int]]) -> Outer:
    """Join dimensions that repeat as one: (step, n), (step * n, m) is (step, n * m)."""
    merged: list[tuple[int, int]] = []
    for step, size in outer:
        if merged and merged[-1][0] * merged[-1][1] == step:
            merged[-1] = merged[-1][0], merged[-1][1] * size
        else:
            merged.append((step, size))
    return tuple(merged)


def _is_comb(form: Form) -> bool:
    """Tell whether no two repetitions overlap."""
    extent = form[1]
    for step, size in form[2]:
        if step < extent:
            return False
        extent = step * size
    return True


class HeldRanges:
    """The bytes and storages that are covered now."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.bytes = 0
        self.storage_bytes = 0
        self._storages: dict[int, _Storage] = {}

    def add(self, part: Part) -> int:
        """Cover a part, and return how many of its bytes were not covered."""
        key, limit, forms = part
        storage = self._storages.get(key)
        if storage is None:
            storage = self._storages[key] = _Storage(limit)
            self.storage_bytes += limit
        storage.holders += 1
        before = storage.bytes
        for form in forms:
            storage.add(form)
        self.bytes += storage.bytes - before
        return storage.bytes - before

    def remove(self, part: Part) -> None:
        """Undo one `add` of a part."""
        key, _, forms = part
        storage = self._storages[key]
        storage.holders -= 1
        if not storage.holders:
            del self._storages[key]
            self.storage_bytes -= storage.limit
            self.bytes -= storage.bytes
            return
        before = storage.bytes
        for form in forms:
            storage.remove(form)
        self.bytes += storage.bytes - before


class _Storage:
    """What is covered of one storage: nearly always a single form, however often."""

    __slots__ = ("_union", "bytes", "count", "form", "holders", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.holders = 0
        self.bytes = 0
        self.count = 0
        self.form: Form = (0, 0, _CONTIGUOUS)
        self._union: _Union | None = None

    def add(self, form: Form) -> None:
        if self._union is not None:
            self.bytes = self._union.change(form, 1)
        elif not self.count:
            self.form, self.count, self.bytes = form, 1, _size(form)
        elif form == self.form:
            self.count += 1
        else:
            self._union = _Union()
            self._union.change(self.form, self.count)
            self.bytes = self._union.change(form, 1)

    def remove(self, form: Form) -> None:
        if self._union is not None:
            self.bytes = self._union.change(form, -1)
            return
        self.count -= 1
        if not self.count:
            self.bytes = 0


class _Union:
    """Several forms in one storage, grouped by the comb whose teeth they lie on."""

    def __init__(self) -> None:
        self._forms: dict[Form, int] = {}
        self._groups: dict[object, _Teeth] = {}
        self._bytes = 0

    def change(self, form: Form, by: int) -> int:
        """Add or remove a form `by` times, and return the bytes of the union."""
        count = self._forms.get(form, 0)
        self._forms[form] = count + by
        if not count:
            self._enter(form)
        elif count + by == 0:
            del self._forms[form]
            self._leave(form)
        return self._bytes

    def _enter(self, form: Form) -> None:
        key, start = _group(form)
        if key not in self._groups:
            self._groups[key] = _Teeth(math.prod(size for _, size in form[2]))
        self._groups[key].change(start, start + form[1], 1)
        self._bytes = self._count()

    def _leave(self, form: Form) -> None:
        key, start = _group(form)
        self._groups[key].change(start, start + form[1], -1)
        if not self._groups[key].covered:
            del self._groups[key]
        self._bytes = self._count()

    def _count(self) -> int:
        if len(self._groups) == 1:
            return next(iter(self._groups.values())).bytes
        plain = self._groups.get(_CONTIGUOUS)
        if plain is not None and all(map(plain.contains, self._forms)):
            return plain.bytes
        return _union_bytes(tuple(sorted(self._forms))) if self._forms else 0


class _Teeth:
    """How often each byte of a tooth is covered, as segments of equal depth."""

    def __init__(self, number: int) -> None:
        self.covered = 0
        self._number = number
        self._points: list[int] = []
        self._depths: list[int] = []  # of the segment that begins at the point

    @property
    def bytes(self) -> int:
        """Return what is covered on all teeth."""
        return self.covered * self._number

    def contains(self, form: Form) -> bool:
        """Tell whether a form lies in what is covered, where that has no hole."""
        first, last = self._points[0], self._points[-1]
        return self.covered == last - first and first <= form[0] and _end(form) <= last

    def change(self, start: int, end: int, by: int) -> None:
        first, last = self._cut(start), self._cut(end)
        for at in range(first, last):
            depth = self._depths[at]
            self._depths[at] = depth + by
            if not depth or not depth + by:
                self.covered += by * (self._points[at + 1] - self._points[at])
        self._join(last)
        self._join(first)

    def _cut(self, point: int) -> int:
        at = bisect_left(self._points, point)
        if at == len(self._points) or self._points[at] != point:
            self._depths.insert(at, self._depths[at - 1] if at else 0)
            self._points.insert(at, point)
        return at

    def _join(self, at: int) -> None:
        if self._depths[at] == (self._depths[at - 1] if at else 0):
            del self._points[at], self._depths[at]


def _end(form: Form) -> int:
    return form[0] + form[1] + sum(step * (size - 1) for step, size in form[2])


def _size(form: Form) -> int:
    size = form[1]
    for _, count in form[2]:
        size *= count
    return size


def _group(form: Form) -> tuple[object, int]:
    """Return the comb that a form lies on and where on its tooth it begins."""
    start, length, outer = form
    if not outer:
        return outer, start
    at = start % outer[0][0]
    if at + length > outer[0][0]:  # it reaches into the next tooth, and so lies on no other's comb
        return form, start
    return (outer, start - at), at


@lru_cache(maxsize=1024)  # steps and layers repeat the same few geometries
def _union_bytes(forms: tuple[Form, ...]) -> int:
    total = covered_to = 0
    for start, end in sorted(itertools.chain.from_iterable(map(_intervals, forms))):
        total += max(0, end - max(start, covered_to))
        covered_to = max(covered_to, end)
    return total


def _intervals(form: Form) -> Iterator[tuple[int, int]]:
    start, length, outer = form
    if math.prod(size for _, size in outer) > MAX_RUNS:
        yield start, start + _size(form)
        return
    for steps in itertools.product(*(range(0, step * size, step) for step, size in outer)):
        first = start + sum(steps)
        yield first, first + length
