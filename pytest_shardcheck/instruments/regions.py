"""One region of a rank, and the measurement through which a test reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pytest_shardcheck.vocabulary.readings import (
        CollectivesReading,
        MemoryReading,
        PhaseReading,
        Reading,
        SavedReading,
    )

    from .panel import Windows
    from .state import StateAtRest, Watched

__tracebackhide__ = hide_from_users


class Phase(Enum):
    """Where a region stands; the value says why it can't be read."""

    NEW = "was never entered: write `with shardcheck.measure(...) as reading:`"
    OPEN = "is still open: read it after its block, or after stop()"
    FAILED = "ended by an exception, so nothing was measured"
    ENDED = ""


@dataclass(slots=True, kw_only=True, eq=False)
class Region:
    """A region while it is measured.

    `started`: opened by start(), not by `with`. `before_step`: the state at the entry of an
    optimizer's step, that of the largest gradients. `windows`: what the instruments keep of it.
    """

    name: str
    watched: Watched
    started: bool = False
    outermost: bool = True
    phase: Phase = Phase.NEW
    before_step: StateAtRest | None = None
    windows: Windows | None = None
    reading: Reading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionHooks:
    """What the meter does when a region's block begins, ends, or ends by an exception."""

    enter: Callable[[Region], None]
    end: Callable[[Region], None]
    drop: Callable[[Region], None]


class Measurement:
    """What `measure` yields: a context manager, readable once its block has ended."""

    def __init__(self, region: Region, hooks: RegionHooks) -> None:
        """Hand out the region's reading; `hooks` are the meter's."""
        self._region = region
        self._hooks = hooks

    @property
    def reading(self) -> Reading:
        """Return the frozen reading.

        Raises:
            UsageError: the region has not ended, or an exception ended it.
        """
        if self._region.reading is None:
            raise UsageError(
                f"can't read region {self._region.name!r}: it {self._region.phase.value}"
            )
        return self._region.reading

    @property
    def memory(self) -> MemoryReading:
        """Return the region's memory, in bytes."""
        return self.reading.memory

    @property
    def collectives(self) -> CollectivesReading:
        """Return the calls that reached a process group."""
        return self.reading.collectives

    @property
    def saved(self) -> SavedReading | None:
        """Return what autograd held; None where no hooks were installed."""
        return self.reading.saved

    @property
    def phases(self) -> dict[str, PhaseReading]:
        """Return what each phase that ran measured."""
        return self.reading.phases

    @property
    def rank(self) -> int:
        """Return the rank that was measured."""
        return self.reading.rank

    @property
    def region(self) -> str:
        """Return the region's name."""
        return self.reading.region

    @property
    def occurrence(self) -> int:
        """Return how many regions of this name had ended before on this rank."""
        return self.reading.occurrence

    @property
    def outermost(self) -> bool:
        """Tell whether the region stood in no other."""
        return self.reading.outermost

    @property
    def implicit(self) -> bool:
        """Tell whether this is the test body, measured because no region was opened."""
        return self.reading.implicit

    def __enter__(self) -> Measurement:
        """Open the region."""
        self._hooks.enter(self._region)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Measure, or record nothing where an exception ended the block."""
        if kind is None:
            self._hooks.end(self._region)
        else:
            self._hooks.drop(self._region)

    def __repr__(self) -> str:
        """Show the region without reading it."""
        return f"<Measurement of region {self._region.name!r}, {self._region.phase.name.lower()}>"
