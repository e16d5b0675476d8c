"""A ring of each rank's last collectives in shared memory, readable after the rank was killed.

Each rank writes fixed-size events into its own file, mapped shared: a store survives a SIGKILL of
the writer, a message in a socket buffer that was never sent does not. The parent reads the files
only when a world hung or died. No torch here: ``instruments`` calls ``Ring.record``.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SLOTS: Final = 64
# sequence, monotonic ns of the issue, 1 when the call returned, name, group
_EVENT: Final = struct.Struct("<QQB39s40s")
_COUNT: Final = struct.Struct("<Q")
_SIZE: Final = _COUNT.size + _SLOTS * _EVENT.size
_RETURNED_AT: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call that reached a process group."""

    number: int  # the first call of its group is 1
    time_ns: int
    returned: bool
    name: str
    group: str


class Ring:
    """The writing side, in a rank."""

    def __init__(self, path: Path) -> None:
        """Map the file at ``path``, made where it is missing."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, _SIZE)
            self._map = mmap.mmap(fd, _SIZE)
        finally:
            os.close(fd)
        self._written = 0
        self._numbers: dict[str, int] = {}

    def issued(self, name: str, group: str, time_ns: int) -> int:
        """Record that a call begins; return its place, for ``returned``."""
        number = self._numbers[group] = self._numbers.get(group, 0) + 1
        offset = _COUNT.size + (self._written % _SLOTS) * _EVENT.size
        _EVENT.pack_into(
            self._map, offset, number, time_ns, 0, name.encode()[:39], group.encode()[:40]
        )
        self._written += 1
        _COUNT.pack_into(self._map, 0, self._written)
        return offset

    def returned(self, offset: int) -> None:
        """Record that the call at ``offset`` returned to its caller."""
        self._map[offset + _RETURNED_AT] = 1


def read(path: Path) -> list[Event]:
    """Return the events of a rank, oldest first; none where it never came that far."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    if len(data) < _SIZE:
        return []
    (written,) = _COUNT.unpack_from(data)
    first = max(0, written - _SLOTS)
    return [_event(data, index % _SLOTS) for index in range(first, written)]


def _event(data: bytes, slot: int) -> Event:
    number, time_ns, returned, name, group = _EVENT.unpack_from(
        data, _COUNT.size + slot * _EVENT.size
    )
    return Event(
        number=number,
        time_ns=time_ns,
        returned=bool(returned),
        name=name.rstrip(b"\0").decode(errors="replace"),
        group=group.rstrip(b"\0").decode(errors="replace"),
    )
