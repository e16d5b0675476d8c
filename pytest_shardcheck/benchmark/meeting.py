"""Ranks meet between two rounds, each with a number, and leave at the same time. Runs in a rank.

They meet in shared memory, awake. One that sleeps until the session wakes it finds its caches cold:
on a busy machine of two cores, its next 0.12 ms of matrix products took 0.15, and an all_reduce
between two of them half as long again. They sleep only where somebody is late, or where there are
more ranks than cores: one that waits awake would then take time from one that works.

Nothing here is a collective, nor seen by one.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

_WORD: Final = struct.Struct("<Q")
_NUMBER: Final = struct.Struct("<d")
_STRIDE: Final = 64  # a cache line each
_PATIENCE_S: Final = 0.002
# What became of a meeting, beside its number: they met here, or they do so through the session.
_MET, _IN_SESSION = 0, 1


class Meeting:
    """One rank's end of all its meetings with the others of its world."""

    def __init__(
        self,
        path: Path,
        rank: int,
        size: int,
        exchange: Callable[[float, str], list[float]],
        cores: int | None = None,
    ) -> None:
        """Take part as rank ``rank`` of ``size``.

        Args:
            path: A file that all ranks of the world share, made by the first.
            rank: Which of them this is.
            size: How many there are.
            exchange: Gives a number to all ranks and returns everyone's, asleep meanwhile; also
                takes what this rank did that waits.
            cores: How many ranks can be awake at once; by default what this process may use.
        """
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._fd, (1 + size) * _STRIDE)
        self._map = mmap.mmap(self._fd, (1 + size) * _STRIDE)
        self._rank = rank
        self._size = size
        self._exchange = exchange
        awake = size <= (_cores() if cores is None else cores)
        self._patience_s = _PATIENCE_S if awake else 0.0
        self._count = 0

    def meet(self, number: float, deed: str) -> list[float]:
        """Wait for all ranks and return the numbers that they came with, ordered by rank.

        ``deed`` is what this rank did that waits, see ``RankContext.exchange``.
        """
        self._count += 1
        if self._arrive(number) or self._met_awake() or self._met_after_all():
            return [self._number_of(rank) for rank in range(self._size)]
        return self._exchange(number, deed)

    def start_together(self) -> None:
        """Return as closely to all other ranks as can be: they are all on their way."""
        self.meet(0.0, "came to the start of the round of the benchmark")

    def _arrive(self, number: float) -> bool:
        """Put our number down; decide, if we are the last. Return whether all have met."""
        with self._locked():
            _NUMBER.pack_into(self._map, self._place_of_number(self._rank), number)
            _WORD.pack_into(self._map, self._place(self._rank), self._count)
            if self._decision() is not None or not self._all_are_here():
                return False
            self._decide(_MET)
        return True

    def _met_awake(self) -> bool:
        give_up = time.monotonic() + self._patience_s
        while (decision := self._decision()) is None and time.monotonic() < give_up:
            os.sched_yield()
        return decision == _MET

    def _met_after_all(self) -> bool:
        """Send everyone to the session, unless it was decided that all have met."""
        with self._locked():
            decision = self._decision()
            if decision is None:
                self._decide(_IN_SESSION)
        return decision == _MET

    def _all_are_here(self) -> bool:
        return all(self._word(self._place(rank)) >= self._count for rank in range(self._size))

    def _decision(self) -> int | None:
        """Return what became of this meeting, None while that is open."""
        meeting, decision = divmod(self._word(self._turn(_WORD)), 2)
        return decision if meeting == self._count else None

    def _decide(self, decision: int) -> None:
        _WORD.pack_into(self._map, self._turn(_WORD), 2 * self._count + decision)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        """Decide one at a time; the kernel takes the lock from a rank that dies with it."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _word(self, place: int) -> int:
        word: int = _WORD.unpack_from(self._map, place)[0]
        return word

    def _number_of(self, rank: int) -> float:
        number: float = _NUMBER.unpack_from(self._map, self._place_of_number(rank))[0]
        return number

    def _place(self, rank: int) -> int:
        return (1 + rank) * _STRIDE

    def _place_of_number(self, rank: int) -> int:
        return self._place(rank) + _WORD.size + self._turn(_NUMBER)

    def _turn(self, struct: struct.Struct) -> int:
        """Return which of two to use: a quick rank may be one meeting ahead of who still reads."""
        return self._count % 2 * struct.size


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
