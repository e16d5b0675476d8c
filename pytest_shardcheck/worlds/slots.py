"""Bound how many ranks run at once over all xdist workers of a session. Runs in the session.

Each rank takes a slot: a byte of a file that is locked for the worker's process, so that a worker
which dies gives its slots back without anyone having to notice. A worker takes its slots behind a
gate, one worker at a time: two that each hold half of what they need would wait for ever, and a
large world would starve behind small ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

_PAUSE_S: Final = 0.005


class Slots:
    """The slots of a session, shared by its workers through the file at ``path``."""

    def __init__(self, path: Path, count: int) -> None:
        """Share ``count`` slots with whoever opens the same path."""
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._count = count

    @contextlib.contextmanager
    def taken(self, ranks: int) -> Generator[None]:
        """Hold one slot a rank; a world larger than all slots together runs alone."""
        wanted = min(ranks, self._count)
        gate = self._count
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, gate)
        try:
            slots = self._take(wanted)
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, gate)
        try:
            yield
        finally:
            for slot in slots:
                fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, slot)

    def close(self) -> None:
        """Give back whatever is held."""
        os.close(self._fd)

    def _take(self, wanted: int) -> list[int]:
        slots: list[int] = []
        while True:
            for slot in range(self._count):
                if slot not in slots and len(slots) < wanted and self._is_free(slot):
                    slots.append(slot)
            if len(slots) == wanted:
                return slots
            time.sleep(_PAUSE_S)

    def _is_free(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except (BlockingIOError, PermissionError):
            return False
        return True
