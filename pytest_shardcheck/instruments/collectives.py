"""Count the calls of one rank that reach its process groups, in their order.

Each call of a `c10d` operator is one call: an object collective is the two or three that torch
makes of it (sizes, then pickles), a coalesced one is one, a send is one on the rank that sends and
a recv one on the rank that receives. What a group needs to come up, and `wait_tensor`, is none.

A call that raises is one too: it reached its group.

Limits: as `c10d_tap`, `payloads` and `groups` say. That a call failed is learnt from `Work.wait`,
not where C++ waits: a test that expects gloo's error from DDP's backward or from `wait_tensor` may
be told that its ranks disagree. Calls that a backend's own thread makes have no line; a
call that a compiled graph makes has the line that called the graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch.distributed import Work

from pytest_shardcheck.vocabulary.call_log import ANYONE, CallLog, Descriptor, Site
from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading

from . import c10d_tap
from .groups import Group, GroupNames
from .payloads import wire_bytes
from .surroundings import text_of

if TYPE_CHECKING:
    from .surroundings import Label, Line, Surroundings


@dataclass(slots=True, eq=False)
class _Record:
    """One call; the module's name and the group's axes may be learnt later."""

    descriptor: Descriptor
    group: Group
    phase: str
    module: Label
    line: Line | None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Where a region began among the calls, and among the unknown ones."""

    calls: int
    unknown: int


class Collectives:
    """Listen to all calls of this process between `start` and `stop`."""

    def __init__(self, surroundings: Surroundings) -> None:
        """Record nothing yet; `surroundings` says from where calls come."""
        self._surroundings = surroundings
        self._names = GroupNames()
        self._records: list[_Record] = []
        self._unknown: list[str] = []
        self._wait: Any = None
        self._has_failed = False

    def start(self) -> None:
        """Record from now on."""
        c10d_tap.install()
        self._names.start()
        c10d_tap.listen(self)
        self._watch_waits()

    def stop(self) -> None:
        """Record no more; what was recorded stays."""
        c10d_tap.stop_listening(self)
        self._names.stop()
        setattr(Work, "wait", self._wait)  # noqa: B010  # mypy refuses the assignment

    def open(self) -> Window:
        """Begin a region."""
        return Window(calls=len(self._records), unknown=len(self._unknown))

    def close(self, window: Window) -> CollectivesReading:
        """End a region and return what it called."""
        return CollectivesReading(
            calls=tuple(map(self._call, self._records[window.calls :])),
            groups=self._names.all(),
            unknown=tuple(dict.fromkeys(self._unknown[window.unknown :])),
        )

    def log(self) -> dict[str, Any]:
        """Return all calls since `start`, to be held against the other ranks', as plain data."""
        descriptors: dict[int, int] = {}
        distinct: list[Descriptor] = []
        sites: dict[Site, int] = {}
        calls = []
        for record in self._records:
            if record.failed:
                continue
            descriptor = record.descriptor
            if id(descriptor) not in descriptors:
                descriptors[id(descriptor)] = len(distinct)
                distinct.append(descriptor)
            site = Site(
                descriptor=descriptors[id(descriptor)],
                module=record.module.name,
                line=text_of(record.line),
            )
            calls.append(sites.setdefault(site, len(sites)))
        log = CallLog(
            descriptors=tuple(distinct),
            sites=tuple(sites),
            calls=tuple(calls),
            failed=self._has_failed,
        )
        return log.to_json()

    # What c10d_tap tells

    def issued(self, call: c10d_tap.Tapped) -> _Record | None:
        """Record a call."""
        group = call.group
        if group is None:
            self._unknown.append(call.operator)
            return None
        self._names.see(group)
        around = self._surroundings
        record = _Record(call.descriptor, group, around.phase(), around.caller(), around.line(2))
        self._records.append(record)
        return record

    def returned(self, token: _Record | None, result: Any) -> None:
        """Do nothing: that a call returned says little of an asynchronous one."""

    def failed(self, token: _Record | None) -> None:
        """Take note that a call was refused: it needs no counterpart on the other ranks."""
        if token is not None:
            token.failed = True

    def _call(self, record: _Record) -> Call:
        descriptor, stream = record.descriptor, record.descriptor.stream
        peer = descriptor.root
        if stream.sender is not None:
            peer = stream.receiver if descriptor.operation == "send" else stream.sender
        return Call(
            operation=descriptor.operation,
            group=record.group.name,
            axes=self._names.axes(record.group),
            ranks=record.group.ranks,
            dtype=descriptor.dtype,
            shapes=descriptor.shapes,
            bytes=descriptor.bytes,
            wire_bytes=wire_bytes(descriptor, record.group.size),
            peer=None if peer == ANYONE else peer,
            phase=record.phase,
            module=record.module.name,
            line=text_of(record.line),
        )

    def _watch_waits(self) -> None:
        """Find out whether a call failed after it was issued, which its `wait` tells.

        The works themselves can't be kept: they keep the arguments.
        """
        self._wait = original = Work.wait

        def wait(work: Work, *args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            try:
                return original(work, *args, **kwargs)
            except BaseException:
                self._has_failed = True
                raise

        setattr(Work, "wait", wait)  # noqa: B010
