"""What autograd held, over the operations: the saved ledger's figures, each with its moment."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.timelines import SavedCurve

from .samples import thinned
from .saved_ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_shardcheck.vocabulary.saved import SavedReading

    from .saved_ledger import Event, Window

_MOST: Final = 800
UNMEASURED: Final = -1

Moment = tuple[int, int]  # the operation, and the time in ns


class StampedLog(deque[Any]):
    """A log of events that has a moment before the events of each operation.

    Threads may put an event between another's and its moment: it is then one operation off.
    """

    def __init__(self, now: Callable[[], Moment]) -> None:
        """Begin empty."""
        super().__init__()
        self._now = now
        self._last = -1

    def append(self, event: Event) -> None:
        """Add an event, after its moment if that is another than the last one's."""
        moment = self._now()
        if moment[0] != self._last:
            self._last = moment[0]
            super().append(moment)
        super().append(event)


class SavedSamples:
    """The samples: what was held, and when."""

    def __init__(self) -> None:
        """Begin with none."""
        self._samples: list[tuple[int, int, int, int]] = []  # operation, ns, bytes, tensors
        self._needed: set[int] = set()  # places of peaks
        self._most = _MOST * 4

    def add(self, moment: Moment, size: int, count: int) -> int:
        """Add a sample if it differs from the last, and return its place."""
        if not self._samples or self._samples[-1][2:] != (size, count):
            at = max(moment[0], self._samples[-1][0]) if self._samples else moment[0]
            self._samples.append((at, moment[1], size, count))
        return len(self._samples) - 1

    def keep(self, place: int) -> None:
        """Keep a sample, whatever is thinned out."""
        self._needed.add(place)

    def thin(self, most: int) -> None:
        """Leave samples out; only while nobody holds places."""
        at = [sample[0] for sample in self._samples]
        kept = thinned(at, lambda place: self._samples[place][2], most, self._needed)
        self._samples = [self._samples[place] for place in kept]
        self._needed = {new for new, place in enumerate(kept) if place in self._needed}
        self._most = max(self._most, 2 * len(kept))

    def thin_if_many(self, held: dict[Window, int]) -> dict[Window, int]:
        """Leave samples out where there are many, and return where those of `held` are now."""
        if len(self._samples) <= self._most:
            return held
        peaks = {window: self._samples[place] for window, place in held.items()}
        self._needed.update(held.values())
        self.thin(self._most // 2)
        places = {sample: place for place, sample in enumerate(self._samples)}
        return {window: places[sample] for window, sample in peaks.items()}

    def curve(self, start_ns: int) -> SavedCurve:
        """Return the samples, their times counted from a moment."""
        self.thin(_MOST)
        return SavedCurve(
            at=tuple(sample[0] for sample in self._samples),
            time_ns=tuple(sample[1] - start_ns for sample in self._samples),
            bytes=tuple(sample[2] for sample in self._samples),
            count=tuple(sample[3] for sample in self._samples),
        )


class StampedSavedLedger(Ledger):
    """A ledger that samples what is held before anything is let go of, and after each operation."""

    def __init__(self, phase: str, samples: SavedSamples, now: Callable[[], Moment]) -> None:
        """Hold nothing, in this phase; samples go to `samples`."""
        super().__init__(phase)
        self._samples = samples
        self._now = now
        self._moment: Moment = (0, 0)
        self._peaks: dict[Window, int] = {}

    def replay(self, log: deque[Event]) -> None:
        """Take in what happened since the last replay, one operation after another."""
        of_operation: deque[Event] = deque()
        while log:
            event = log.popleft()
            if isinstance(event, tuple):
                super().replay(of_operation)
                self._sample()
                self._moment = event
            else:
                of_operation.append(event)
        super().replay(of_operation)
        self._sample()

    def open(self, window: Window) -> None:
        """Add a window, and sample what is held at its start."""
        self._moment = self._now()
        self._peaks[window] = 0
        super().open(window)
        self._peaks[window] = self._sample()

    def close(self, window: Window) -> SavedReading:
        """Remove a window; after the last one nothing is seen."""
        self._moment = self._now()
        self._sample()
        self._samples.keep(self._peaks.pop(window))
        reading = super().close(window)
        if not self.windows:
            self._samples.add(self._moment, UNMEASURED, UNMEASURED)
        return reading

    def _note(self) -> None:
        higher = [w for w in self.windows if self._ranges.bytes > w.most.bytes]
        super()._note()
        place = self._sample()
        self._peaks.update(dict.fromkeys(higher, place))
        self._peaks = self._samples.thin_if_many(self._peaks)

    def _sample(self) -> int:
        if not self.windows:
            return 0
        return self._samples.add(self._moment, self._ranges.bytes, self._count)
