"""The storages alive on a rank, and the most of them at one time.

A block is one life of a storage: a resize ends it and begins another. What was alive at a peak is
known without a copy at each new peak: births and deaths are numbered, so a peak is a number, and
the blocks that died since then and were born before it are kept.

Limits: storages made over the same memory (`torch.from_numpy` twice) count once each.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch
    from torch import Tensor

    from .surroundings import Label, Line

_FIRST_TRIM = 4_096
_MOST_HOLDS = 16
_MOST_DEAD = 256  # that wait to be buried while no figure needs it


class Device:
    """A device's live bytes, and the figure above which somebody has to look."""

    __slots__ = ("live", "name", "threshold")

    def __init__(self, name: str) -> None:
        """Begin empty."""
        self.name = name
        self.live = 0
        self.threshold: float = -1  # a new device is looked at once


class Place(NamedTuple):
    """What made a block, and where: the operator, the module's label, the user's line."""

    operator: object = ""
    label: Label | None = None
    line: Line | None = None


# What is known of a block, as bits.
COMMUNICATED: Final = 1  # a collective read or wrote it
GIVEN: Final = 2  # the outermost module was called with it
GRADIENT: Final = 4  # autograd accumulated it, or an optimizer's step found it


class Block:
    """One life of a storage.

    `dtype` and `shape` are those of the first tensor that showed it, `place` is where that was.
    `born` and `died` are numbers of the ledger's clock. `marks` are bits, see above.
    """

    __slots__ = (
        "born",
        "bytes",
        "device",
        "died",
        "dtype",
        "home",
        "marks",
        "place",
        "shape",
    )

    def __init__(  # noqa: PLR0913, PLR0917  (filled in at once: this is the hot path)
        self,
        home: Home,
        device: Device,
        size: int,
        born: int,
        like: Tensor | Block,
        place: Place,
        marks: int,
    ) -> None:
        """Begin a life."""
        self.home = home
        self.device = device
        self.bytes = size
        self.born = born
        self.died: float = inf
        self.dtype: torch.dtype = like.dtype
        self.shape: tuple[int, ...] = _shape_of(like)
        self.place = place
        self.marks = marks


def _shape_of(like: Tensor | Block) -> tuple[int, ...]:
    try:
        return like.shape
    except RuntimeError:  # a nested tensor of the strided layout has none
        return ()


class Home(weakref.ref["torch.UntypedStorage"]):
    """A storage as long as it lives, with its present block; it outlives it in its dead blocks.

    `holds` are the stretches of the ledger's clock in which autograd had it saved.
    """

    __slots__ = ("block", "held", "holds", "key")

    key: int
    block: Block
    held: int
    holds: list[list[float]] | None

    # Of the object: that of a weak reference ends with what it refers to.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def held_at(self, at: int) -> bool:
        """Tell whether autograd had the storage saved at a moment of the ledger's clock."""
        return any(start <= at < end for start, end in self.holds or ())


class Peak:
    """The most bytes alive on a device in a stretch, and when; `start` and `end` are its ends'."""

    __slots__ = ("at", "end", "live", "start")

    def __init__(self, live: int, at: int) -> None:
        """Begin with what is alive at the beginning."""
        self.start = self.end = self.live = live
        self.at = at


class Ledger:
    """The living storages by their objects' ids, and the dead that a peak still needs.

    torch keeps a storage's Python object as long as the storage lives, so an id is a key as long
    as the object's end removes it. It may end in any thread, a backend's worker among them: that
    only appends to a queue, which the threads that allocate empty.
    """

    def __init__(self) -> None:
        """Begin with no storage."""
        self.known: dict[int, Home] = {}
        self.devices: dict[torch.device, Device | None] = {}
        self.dead: deque[Block] = deque()
        self.clock = 0
        self.lock = threading.RLock()
        self._gone = self._collector()
        self._graveyard: list[Block] = []
        self._latest_peak = -1
        self._trim_at = _FIRST_TRIM
        self._peaks: Callable[[], Iterator[Peak]] = lambda: iter(())

    def follow(self, peaks: Callable[[], Iterator[Peak]]) -> None:
        """Keep the dead that were alive at one of these peaks."""
        self._peaks = peaks

    def home_of(self, tensor: Tensor) -> Home | None:
        """Return where a plain tensor lives, None where it was never seen."""
        return self.known.get(id(tensor.untyped_storage()))

    def device_of(self, device: torch.device) -> Device | None:
        """Return the record of a device; None for meta tensors, which have no bytes."""
        try:
            return self.devices[device]
        except KeyError:
            record = None if device.type == "meta" else Device(str(device))
            return self.devices.setdefault(device, record)

    def take_in(
        self, storage: torch.UntypedStorage, device: Device, tensor: Tensor, place: Place
    ) -> Block:
        """Take in a storage that was not known, shown by `tensor`."""
        home = Home(storage, self._gone)
        home.key = key = id(storage)
        home.holds, home.held = None, 0
        size = storage.nbytes()
        with self.lock:
            self.clock = born = self.clock + 1
            home.block = block = Block(home, device, size, born, tensor, place, 0)
            self.known[key] = home
            device.live += size
            if len(self.dead) > _MOST_DEAD:
                self.drain()
        return block

    def resize(self, home: Home, size: int, place: Place) -> Block:
        """End a storage's block and begin another."""
        with self.lock:
            old = home.block
            self._bury(old)
            self.clock = born = self.clock + 1
            marks = old.marks & ~GIVEN
            new = home.block = Block(home, old.device, size, born, old, place, marks)
            old.device.live += size
        return new

    def drain(self) -> bool:
        """Bury the storages that have ended; tell whether there were any."""
        dead = self.dead
        if not dead:
            return False
        with self.lock:
            while dead:
                self._bury(dead.popleft())
        return True

    def reached(self, peak: Peak, live: int) -> None:
        """Take down a new peak: now."""
        peak.live = live
        peak.at = self._latest_peak = self.clock

    def alive_at(self, peak: Peak, device: Device) -> list[Block]:
        """Return the blocks that were alive at a followed peak, oldest first."""
        blocks = [home.block for home in list(self.known.values())]
        blocks += self._graveyard
        at = peak.at
        alive = [b for b in blocks if b.device is device and b.born <= at < b.died and b.bytes]
        return sorted(alive, key=lambda block: block.born)

    def alive(self) -> list[Block]:
        """Return the blocks that are alive now, oldest first."""
        blocks = [home.block for home in list(self.known.values())]
        return sorted((b for b in blocks if b.bytes), key=lambda block: block.born)

    def mark(self, tensors: Iterable[Tensor], mark: int) -> None:
        """Set a mark on the blocks of plain tensors that are known."""
        for tensor in tensors:
            home = self.known.get(id(tensor.untyped_storage()))
            if home is not None:
                home.block.marks |= mark

    def hold(self, home: Home) -> None:
        """Note that autograd saved a tensor of this storage."""
        with self.lock:
            home.held += 1
            if home.held > 1:
                return
            if home.holds is None:
                home.holds = []
            elif len(home.holds) > _MOST_HOLDS:
                needed = [peak.at for peak in self._peaks()]
                home.holds = [h for h in home.holds if any(h[0] <= at < h[1] for at in needed)]
            home.holds.append([self.clock, inf])

    def let_go(self, home: Home) -> None:
        """Note that autograd let go of a tensor of this storage."""
        with self.lock:
            home.held -= 1
            if home.held == 0 and home.holds:
                # A peak at this very number may have been taken down before: it counts.
                home.holds[-1][1] = self.clock + 1
                self.clock += 1

    def _collector(self) -> Callable[[Any], None]:
        known, dead = self.known, self.dead

        def gone(home: Home) -> None:
            del known[home.key]
            dead.append(home.block)
            del home.block  # or the two would be a cycle, and wait for the collector

        return gone

    def _bury(self, block: Block) -> None:
        self.clock += 1
        block.died = self.clock
        block.device.live -= block.bytes
        # One that was born after every peak is missed by none.
        if block.born <= self._latest_peak:
            self._graveyard.append(block)
            if len(self._graveyard) > self._trim_at:
                self._trim()

    def _trim(self) -> None:
        needed = [peak.at for peak in self._peaks()]
        self._graveyard = [
            block
            for block in self._graveyard
            if any(block.born <= at < block.died for at in needed)
        ]
        self._trim_at = max(_FIRST_TRIM, 2 * len(self._graveyard))
        self._latest_peak = max(needed, default=-1)
