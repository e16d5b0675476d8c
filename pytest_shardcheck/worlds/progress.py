"""How far the training of a simulated rank is, in shared memory: for people who wait for it.

A rank writes 8 bytes where its phase changes; the session reads them when it has something to show.
"""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Final

from pytest_shardcheck.worlds.shared_memory import mapped

_PHASES: Final = ("", "forward", "backward", "optimizer")
_PROGRESS: Final = struct.Struct("<II")  # steps that an optimizer has ended, index of the phase


class Progress:
    """The writing side, in a rank."""

    def __init__(self, path: Path) -> None:
        """Map the file at ``path``, which is made."""
        self._map = mapped(path, _PROGRESS.size)

    def tell(self, steps: int, phase: str) -> None:
        """Say that a phase has begun after so many steps of an optimizer."""
        _PROGRESS.pack_into(self._map, 0, steps, _PHASES.index(phase))


def read(path: Path) -> str:
    """Return "step 2 backward"; nothing where the training of a rank has not begun."""
    with contextlib.suppress(OSError, struct.error, IndexError):
        steps, phase = _PROGRESS.unpack(path.read_bytes())
        if phase:
            return f"step {steps + 1} {_PHASES[phase]}"
    return ""
