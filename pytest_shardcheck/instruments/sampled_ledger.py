"""The live ledger with samples: moments of its clock at which the rest can be worked out later."""

from __future__ import annotations

from bisect import bisect_left
from math import inf
from typing import TYPE_CHECKING, Final

from .blocks import Ledger
from .samples import thinned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .blocks import Block, Home, Peak

_MOST_PENDING: Final = 4_096


class RecordingLedger(Ledger):
    """A ledger that keeps the dead which its samples still need, as it does those of peaks."""

    def __init__(self, now: Callable[[], tuple[int, int]]) -> None:
        """Begin with no sample; `now` returns the operation that runs and the time."""
        super().__init__()
        self.clocks: list[int] = []
        self.at: list[int] = []
        self.time_ns: list[int] = []
        self.needed: set[int] = set()  # clocks of peaks whose samples stay
        self.left_out = 0
        self._totals: list[int] = []
        self._most = _MOST_PENDING
        self._now = now
        self._early: tuple[int, int] | None = None  # the clock before and after such burials

    def sample(self) -> bool:
        """Take down what is alive now, if it has changed; tell whether that could be believed.

        It can't while a thread has allocated and not yet looked whether that is a new peak.
        """
        self._drain_early()
        with self.lock:
            devices = [device for device in list(self.devices.values()) if device is not None]
            if any(device.live > device.threshold for device in devices):
                return False
            self._take_down()
        return True

    def drain(self) -> bool:
        """Bury the storages that have ended, where a ledger that does not record would."""
        self._early = None
        return super().drain()

    def _drain_early(self) -> None:
        """Bury the storages that have ended; what is saved next is saved as if that came later.

        A storage counts as saved at a peak after which nothing happened until autograd held it.
        """
        before = self.clock
        if super().drain():
            self._early = (self._clock_but_for_early(before), self.clock)

    def _clock_but_for_early(self, clock: int) -> int:
        early = self._early
        return early[0] if early is not None and early[1] == clock else clock

    def reached(self, peak: Peak, live: int) -> None:
        """Take down a new peak, and sample it."""
        super().reached(peak, live)
        with self.lock:
            self._take_down()

    def hold(self, home: Home) -> None:
        """Note that autograd saved a tensor of this storage; no stretch is forgotten yet."""
        with self.lock:
            home.held += 1
            if home.held == 1:
                if home.holds is None:
                    home.holds = []
                home.holds.append([self._clock_but_for_early(self.clock), inf])

    def blocks(self) -> list[Block]:
        """Return what is alive and the dead that some sample shows."""
        self._trim()
        return [*(home.block for home in list(self.known.values())), *self._graveyard]

    def forget(self) -> None:
        """Begin anew with samples: what they show was worked out."""
        for series in (self.clocks, self.at, self.time_ns, self._totals):
            series.clear()
        self.needed.clear()
        self._trim()

    def _take_down(self) -> None:
        if self.clocks and self.clocks[-1] == self.clock:
            return
        at, time_ns = self._now()
        self.clocks.append(self.clock)
        # Of two operations that two threads run, the later may be known first.
        self.at.append(max(at, self.at[-1]) if self.at else at)
        self.time_ns.append(time_ns)
        self._totals.append(sum(d.live for d in list(self.devices.values()) if d is not None))
        self._latest_peak = self.clock  # what dies from now on may be missed
        if len(self.clocks) > self._most:
            self._thin()

    def _thin(self) -> None:
        needed = {*self.needed, *(peak.at for peak in self._peaks())}
        places = [place for place, clock in enumerate(self.clocks) if clock in needed]
        kept = thinned(self.at, self._totals.__getitem__, _MOST_PENDING // 2, places)
        self.left_out += len(self.clocks) - len(kept)
        self._most = max(_MOST_PENDING, 2 * len(kept))
        for series in (self.clocks, self.at, self.time_ns, self._totals):
            series[:] = [series[place] for place in kept]
        self._trim()

    def _trim(self) -> None:
        with self.lock:
            needed = sorted({*self.clocks, *(peak.at for peak in self._peaks())})
            self._graveyard = [b for b in self._graveyard if _within(needed, b.born, b.died)]
            for home in {*self.known.values(), *(block.home for block in self._graveyard)}:
                if home.holds:
                    home.holds = [
                        hold for hold in home.holds if hold[1] == inf or _within(needed, *hold)
                    ]
            self._trim_at = max(_MOST_PENDING, 2 * len(self._graveyard))
            self._latest_peak = needed[-1] if needed else -1


def _within(numbers: Sequence[float], begin: float, end: float) -> bool:
    """Tell whether one of the ascending numbers lies in a half-open stretch."""
    place = bisect_left(numbers, begin)
    return place < len(numbers) and numbers[place] < end
