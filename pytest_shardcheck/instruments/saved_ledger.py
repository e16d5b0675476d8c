"""Replay what was packed and let go of, and find the largest figures of each window.

A pack hook may cost a microsecond or two, and a tensor may be let go of by any thread, in the
middle of anything. So hooks only append to a log; it is replayed here, in its order.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.vocabulary.saved import SavedBytes, SavedReading

from .held_ranges import HeldRanges

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterable

    from .held_ranges import Part
    from .surroundings import Label


class Record(weakref.ref[object]):
    """One tensor that autograd holds, and a weak reference to what is alive for just as long.

    It comes up in the log twice: when the tensor was packed, and when it was let go of.
    """

    __slots__ = ("index", "is_state", "label", "parts", "told")

    told: object  # what whoever was told that it is held gave for it
    parts: tuple[Part, ...]
    is_state: bool  # a parameter or buffer
    label: Label  # the module that packed it
    index: int  # its place among all that were packed, 0 before it was replayed


HOOK_RAN: Final = object()  # in the log: a tensor was packed of which autograd holds nothing

Event = object  # a Record, HOOK_RAN, or a phase's name where another phase begins


@dataclass(slots=True)
class _Most:
    """The largest of each figure at one time."""

    packed: int = 0
    count: int = 0
    bytes: int = 0
    storage_bytes: int = 0

    def reading(self) -> SavedBytes:
        return SavedBytes(
            packed=self.packed,
            count=self.count,
            bytes=self.bytes,
            storage_bytes=self.storage_bytes,
        )


@dataclass(slots=True, eq=False)
class Window:
    """A region while it is measured.

    `peak` is the index of the last tensor that was packed before the moment of the most bytes, and
    `since` those held then that were let go of after it.
    """

    runs_before: int = 0
    unseen: dict[str, None] = field(default_factory=dict)  # in the order of their coming
    saw_backward: bool = False
    most: _Most = field(default_factory=_Most)
    phases: dict[str, _Most] = field(default_factory=lambda: defaultdict(_Most))
    at_forward_end: int = 0
    packs: int = 0
    peak: int = 0
    since: list[Record] = field(default_factory=list)


class Ledger:
    """What autograd holds, and the windows that look at it."""

    def __init__(self, phase: str) -> None:
        """Hold nothing, in this phase."""
        self.windows: list[Window] = []
        self._phase = phase
        self._ranges = HeldRanges()
        self._packed = 0
        self._count = 0
        self._last = 0
        self._alive: dict[int, Record] = {}
        # Figures only grow until something is let go of: then, and at turns, they are noted.
        self._grew = False

    def replay(self, log: deque[Event]) -> None:
        """Take in what happened since the last replay."""
        while log:
            event = log.popleft()
            if isinstance(event, Record):
                if event.index:  # it was in the log before
                    self._let_go(event)
                else:
                    self._pack(event)
            elif isinstance(event, str):
                self._turn(event)
            else:
                self._count_pack()
        if self._grew:
            self._note()

    def open(self, window: Window) -> None:
        """Add a window: what is held counts from its start."""
        self.windows.append(window)
        window.peak = self._last
        self._note()

    def close(self, window: Window) -> SavedReading:
        """Remove a window and return its figures."""
        self.windows.remove(window)
        most = window.most
        return SavedReading(
            packed=most.packed,
            count=most.count,
            bytes=most.bytes,
            storage_bytes=most.storage_bytes,
            at_forward_end=window.at_forward_end,
            modules=self._modules(window),
            packs=window.packs,
            backward=window.saw_backward,
            unseen=tuple(window.unseen),
            phases={name: figures.reading() for name, figures in window.phases.items()},
        )

    def _pack(self, record: Record) -> None:
        self._last += 1
        record.index = self._last
        self._alive[record.index] = record
        self._packed += 1
        if not record.is_state:
            self._count += 1
            for part in record.parts:
                self._ranges.add(part)
        self._grew = True
        self._count_pack()

    def _count_pack(self) -> None:
        for window in self.windows:
            window.packs += 1

    def _let_go(self, record: Record) -> None:
        if self._grew:
            self._note()
        del self._alive[record.index]
        self._packed -= 1
        if record.is_state:
            return
        self._count -= 1
        for part in record.parts:
            self._ranges.remove(part)
        for window in self.windows:
            if record.index <= window.peak:
                window.since.append(record)

    def _turn(self, phase: str) -> None:
        if self._grew:
            self._note()
        if phase == "backward" != self._phase:
            for window in self.windows:
                window.at_forward_end = max(window.at_forward_end, self._ranges.bytes)
        self._phase = phase
        self._note()

    def _note(self) -> None:
        self._grew = False
        for window in self.windows:
            if self._ranges.bytes > window.most.bytes:
                window.peak = self._last
                window.since.clear()
            if self._phase == "backward":
                window.saw_backward = True
            self._raise(window.most)
            self._raise(window.phases[self._phase])

    def _raise(self, most: _Most) -> None:
        most.packed = max(most.packed, self._packed)
        most.count = max(most.count, self._count)
        most.bytes = max(most.bytes, self._ranges.bytes)
        most.storage_bytes = max(most.storage_bytes, self._ranges.storage_bytes)

    def _modules(self, window: Window) -> dict[str, int]:
        """Return each module's bytes at the peak; a byte is that of the first that saved it."""
        held = [record for record in self._alive.values() if record.index <= window.peak]
        held = sorted([*held, *window.since], key=lambda record: record.index)
        return _bytes_by_module(record for record in held if not record.is_state)


def _bytes_by_module(records: Iterable[Record]) -> dict[str, int]:
    ranges = HeldRanges()
    sizes: dict[str, int] = defaultdict(int)
    for record in records:
        sizes[record.label.name] += sum(map(ranges.add, record.parts))
    return {name: size for name, size in sizes.items() if size}
