"""When each collective was issued and when it returned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.timelines import Issued

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_shardcheck.vocabulary.collectives import Call

_MOST: Final = 4_000


@dataclass(slots=True, eq=False)
class _Timed:
    record: Any
    at: int
    time_ns: int
    returned_ns: int


class TimedCalls:
    """The first calls of a rank; the number of the others."""

    def __init__(self) -> None:
        """Begin with none."""
        self.describe: Callable[[Any], Call]
        self._calls: list[_Timed] = []
        self._running: dict[int, _Timed] = {}  # by the id of a record, which lives on
        self._left_out = 0

    def issued(self, record: object, at: int, time_ns: int) -> None:
        """Note that a call was issued."""
        if len(self._calls) >= _MOST:
            self._left_out += 1
            return
        call = self._running[id(record)] = _Timed(record, at, time_ns, time_ns)
        self._calls.append(call)

    def returned(self, record: object, time_ns: int) -> None:
        """Note that a call returned, or was refused."""
        call = self._running.pop(id(record), None)
        if call is not None:
            call.returned_ns = time_ns

    def data(self, start_ns: int) -> tuple[tuple[Call, ...], tuple[Issued, ...], int]:
        """Return what kinds of calls there were, the calls, and how many are left out.

        Times are counted from `start_ns`.
        """
        kinds: dict[Call, int] = {}
        calls = tuple(
            Issued(
                kind=kinds.setdefault(self.describe(call.record), len(kinds)),
                at=call.at,
                time_ns=call.time_ns - start_ns,
                returned_ns=call.returned_ns - start_ns,
            )
            for call in self._calls
        )
        return tuple(kinds), calls, self._left_out
