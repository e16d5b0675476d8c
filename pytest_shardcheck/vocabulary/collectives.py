"""What one rank told its process groups in one region: frozen, plain data. All sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.plain import Plain

OPERATIONS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "send",
    "recv",
    "barrier",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Describe one call that reached a process group.

    `group` is the group's own name, `axes` what else it is called: mesh axes, its description,
    "world". `peer` is the other rank of a send or recv, or the root. `bytes` is the payload by the
    convention of nccl-tests, `wire_bytes` what this rank sends in a ring. `shapes` and `dtype` are
    those of the tensors whose sizes are the payload.
    """

    operation: str
    group: str
    axes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    dtype: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    bytes: int = 0
    wire_bytes: int = 0
    peer: int | None = None
    phase: str = "forward"
    module: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """Sum calls: how many, their payload, what they put on the wire, and the largest payload."""

    count: int = 0
    bytes: int = 0
    wire_bytes: int = 0
    largest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivesReading(Plain):
    """Hold the calls of one rank in their order.

    `reading["all_gather"]` is the `Volume` of one operation (zeros where none ran), `total` that
    of all. `groups` are the names that this rank's groups answer to, also those without a call.
    `unknown` are operators that we can't name: nothing can be said of a region that has one.
    """

    calls: tuple[Call, ...] = ()
    groups: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __getitem__(self, operation: str) -> Volume:
        """Return the volume of an operation.

        Raises:
            UsageError: no such operation, or the region had one that we don't know.
        """
        if operation not in OPERATIONS:
            raise UsageError(
                f"there is no collective {operation!r}; there are {', '.join(OPERATIONS)}"
            )
        return self._volume(operation)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the operations that ran, in the order of their first call."""
        return iter(dict.fromkeys(call.operation for call in self.calls))

    @property
    def total(self) -> Volume:
        """Return the volume of all operations.

        Raises:
            UsageError: the region had an operation that we don't know.
        """
        return self._volume(None)

    def _volume(self, operation: str | None) -> Volume:
        if self.unknown:
            raise UsageError(
                f"operators that this version of pytest-shardcheck does not know reached a process "
                f"group: {', '.join(self.unknown)}; no count can be trusted"
            )
        calls = [call for call in self.calls if operation in (None, call.operation)]
        return Volume(
            count=len(calls),
            bytes=sum(call.bytes for call in calls),
            wire_bytes=sum(call.wire_bytes for call in calls),
            largest=max((call.bytes for call in calls), default=0),
        )

    def group(self, name: str) -> CollectivesReading:
        """Return the calls of the groups that answer to `name`: an axis, a description, "world".

        Raises:
            UsageError: this rank has no such group.
        """
        if name not in self.groups:
            raise UsageError(
                f"there is no process group {name!r}; there are {', '.join(self.groups)}"
            )
        calls = tuple(call for call in self.calls if name in (call.group, *call.axes))
        return CollectivesReading(calls=calls, groups=self.groups, unknown=self.unknown)

    def phase(self, name: str) -> CollectivesReading:
        """Return the calls of one phase."""
        calls = tuple(call for call in self.calls if call.phase == name)
        return CollectivesReading(calls=calls, groups=self.groups, unknown=self.unknown)
