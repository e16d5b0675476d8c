"""A ring of each rank's last collectives in shared memory, readable after the rank was killed.

Each rank writes fixed-size events into its own file, mapped shared: a store survives a SIGKILL of
the writer, a message in a socket buffer that was never sent does not. The parent reads the files
only when a world is in trouble. No torch here: ``instruments`` say what a call is.

What a call moves is written once, behind the ring, as a descriptor in JSON, and the events refer to
it. There are two halves for descriptors: while one is filled again, what the ring's last events
refer to stands in the other.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import struct
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

from pytest_shardcheck.vocabulary.call_log import Descriptor, Stream
from pytest_shardcheck.worlds.shared_memory import mapped

_SLOTS: Final = 64
# number, monotonic ns of the issue, where the descriptor is, 1 when the call returned
_EVENT: Final = struct.Struct("<QQIB")
_RETURNED_AT: Final = 20
_COUNT: Final = struct.Struct("<Q")
_TABLE: Final = _COUNT.size + _SLOTS * _EVENT.size
_LENGTH: Final = struct.Struct("<H")
_LONGEST: Final = 2000
# A half holds more than what a whole ring of events can refer to.
_HALF: Final = 2 * _SLOTS * (_LONGEST + _LENGTH.size)
_SIZE: Final = _TABLE + 2 * _HALF

# Where an event is, and the count of its stream.
Place: TypeAlias = tuple[int, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One call that reached a process group.

    ``number`` counts the calls of its stream from 1; it is 0 where the call was refused.
    """

    number: int
    time_ns: int
    returned: bool
    descriptor: Descriptor

    @property
    def name(self) -> str:
        """Return what was called."""
        return self.descriptor.operation

    @property
    def group(self) -> str:
        """Return what to call the group."""
        return self.descriptor.stream.label


class _Written:
    """A descriptor that stands in the file, and its stream's count of calls."""

    __slots__ = ("count", "descriptor", "offset")

    def __init__(self, descriptor: Descriptor, offset: int, count: list[int]) -> None:
        # Kept, so that its id is not given to another.
        self.descriptor = descriptor
        self.offset = offset
        self.count = count


class Ring:
    """The writing side, in a rank."""

    def __init__(self, path: Path) -> None:
        """Map the file at ``path``, made where it is missing."""
        self._map = mapped(path, _SIZE)
        self._events = 0
        self._counts: dict[Stream, list[int]] = {}
        self._written: dict[int, _Written] = {}
        self._half = 0
        self._end = _TABLE
        self._lock = threading.Lock()

    def issued(self, descriptor: Descriptor, time_ns: int) -> Place:
        """Record that a call begins; return its place, for ``returned`` or ``failed``."""
        with self._lock:
            written = self._written.get(id(descriptor)) or self._write(descriptor)
            written.count[0] += 1
            offset = _COUNT.size + (self._events % _SLOTS) * _EVENT.size
            _EVENT.pack_into(self._map, offset, written.count[0], time_ns, written.offset, 0)
            self._events += 1
            _COUNT.pack_into(self._map, 0, self._events)
            return offset, written.count

    def returned(self, place: Place) -> None:
        """Record that the call at ``place`` returned to its caller."""
        self._map[place[0] + _RETURNED_AT] = 1

    def failed(self, place: Place) -> None:
        """Record that the call at ``place`` was refused: it needs no counterpart elsewhere."""
        offset, count = place
        with self._lock:
            count[0] -= 1
            _COUNT.pack_into(self._map, offset, 0)
            self._map[offset + _RETURNED_AT] = 1

    def _write(self, descriptor: Descriptor) -> _Written:
        data = _encoded(descriptor)
        if self._end + _LENGTH.size + len(data) > _TABLE + (self._half + 1) * _HALF:
            self._half = 1 - self._half
            self._end = _TABLE + self._half * _HALF
            self._written.clear()
        offset = self._end
        _LENGTH.pack_into(self._map, offset, len(data))
        start = offset + _LENGTH.size
        self._end = start + len(data)
        self._map[start : self._end] = data
        count = self._counts.setdefault(descriptor.stream, [0])
        written = self._written[id(descriptor)] = _Written(descriptor, offset, count)
        return written


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
    events = []
    for index in range(first, written):
        with contextlib.suppress(ValueError, KeyError, struct.error):  # killed while it wrote
            events.append(_event(data, index % _SLOTS))
    return events


def read_last(path: Path) -> Event | None:
    """Return the last event of a rank that runs, without reading the whole file; None where none.

    None also where the rank is just writing it.
    """
    torn = (ValueError, KeyError, TypeError, AttributeError, struct.error)
    with (
        contextlib.suppress(OSError, *torn),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        (written,) = _COUNT.unpack_from(data)
        return _event(data, (written - 1) % _SLOTS) if written else None
    return None


def _event(data: bytes | mmap.mmap, slot: int) -> Event:
    number, time_ns, offset, returned = _EVENT.unpack_from(data, _COUNT.size + slot * _EVENT.size)
    (length,) = _LENGTH.unpack_from(data, offset)
    start = offset + _LENGTH.size
    descriptor = Descriptor.from_json(json.loads(data[start : start + length]))
    return Event(number=number, time_ns=time_ns, returned=bool(returned), descriptor=descriptor)


def _encoded(descriptor: Descriptor) -> bytes:
    """Return a descriptor as JSON, without its details where those are too long."""
    data = json.dumps(descriptor.to_json()).encode()
    if len(data) <= _LONGEST:
        return data
    stream = descriptor.stream
    short = Descriptor(
        operation=descriptor.operation[:200],
        stream=replace(stream, name=stream.name[:200], label=stream.label[:200], ranks=()),
        dtype=descriptor.dtype[:200],
        bytes=descriptor.bytes,
    )
    return json.dumps(short.to_json()).encode()
