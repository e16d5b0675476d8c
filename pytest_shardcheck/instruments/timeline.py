"""Record what a rank does, operation by operation, for those who asked to see it.

Nothing here runs otherwise: the instruments are given recording parts in place of their own. Those
count as the others do, so a reading is the same with and without.

What a storage was is often known only when a region ends (it was a parameter all the time), so
births and deaths are kept, as peaks keep them, and samples say between which of them an operation
ended. The figures by category are worked out when an outermost region ends (`curves`).

Limits: a test of very many operations is thinned out (`samples`); each region keeps its peaks. What
is freed between two operators shows with the next one.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.timelines import RegionSpan, Timeline, Turn

from ._torch_private import keep_from_compiler
from .collectives import Collectives
from .curves import Curves
from .dispatch import StorageMode
from .sampled_ledger import RecordingLedger
from .saved_activations import SavedActivations
from .saved_timeline import SavedSamples, StampedLog, StampedSavedLedger
from .timed_calls import TimedCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .blocks import Home, Peak
    from .c10d_tap import Tapped
    from .collectives import _Record
    from .dispatch import Witness
    from .live_report import Claimed
    from .surroundings import Surroundings

_MOST_TURNS: Final = 4_000
_MOST_REGIONS: Final = 4_000


class OpenRegion:
    """A region that has begun."""

    __slots__ = ("began", "depth", "region")

    def __init__(self, region: str, depth: int, began: tuple[int, int]) -> None:
        """Begin at an operation and a time."""
        self.region = region
        self.depth = depth
        self.began = began


class RecordingMode(StorageMode):  # type: ignore[no-untyped-call]
    """Look as any other mode does, and note that an operator ran."""

    def __init__(self, witness: Witness, recorder: Recorder) -> None:
        """Tell `recorder` of the operators that `witness` sees."""
        super().__init__(witness)
        self._recorder = recorder

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        run: Callable[..., Any] | None = None,
    ) -> Any:
        """Run the operator, then sample."""
        recorder = self._recorder
        recorder.operation = next(recorder.operations)
        result = super().__torch_dispatch__(func, types, args, kwargs, run)
        if result is not NotImplemented and not self._witness.off:
            recorder.look()
        return result


keep_from_compiler(RecordingMode.__torch_dispatch__)


class RecordingSavedActivations(SavedActivations):
    """Saved activations whose log says in which operation things happened."""

    def __init__(self, surroundings: Surroundings, recorder: Recorder, **told: Any) -> None:
        """Install nothing yet; `told` is `held` and `released`."""
        super().__init__(surroundings, **told)
        self._log = StampedLog(recorder.now)
        self._ledger = StampedSavedLedger(self._phase, recorder.saved, recorder.now)


class RecordingCollectives(Collectives):
    """Collectives that note when each call was issued and when it returned."""

    def __init__(self, surroundings: Surroundings, recorder: Recorder) -> None:
        """Record nothing yet."""
        super().__init__(surroundings)
        self._recorder = recorder
        recorder.calls.describe = self._call

    def issued(self, call: Tapped) -> _Record | None:
        """Record a call with its moment."""
        record = super().issued(call)
        if record is not None:
            self._recorder.calls.issued(record, *self._recorder.now())
        return record

    def returned(self, token: _Record | None, result: Any) -> None:
        """Note when a call returned, which says little of an asynchronous one's end."""
        self._recorder.calls.returned(token, time.monotonic_ns())

    def failed(self, token: _Record | None) -> None:
        """Note that a call was refused."""
        super().failed(token)
        self._recorder.calls.returned(token, time.monotonic_ns())


class Recorder:
    """What is recorded of a rank, from here to `timeline()`."""

    def __init__(self, rank: int, device: str) -> None:
        """Record for a rank whose own device is `device`."""
        self.operations = itertools.count(1)  # what threads share
        self.operation = 0
        self.saved = SavedSamples()
        self.calls = TimedCalls()
        self.ledger = RecordingLedger(self.now)
        self._rank, self._device = rank, device
        self._start_ns = time.monotonic_ns()
        self._seen = 0
        self._known: dict[Home, Any] = {}
        self._curves = Curves(device)
        self._turns = [Turn(phase="forward", at=0, time_ns=self._start_ns)]
        self._turns_left_out = 0
        self._regions: list[RegionSpan] = []
        self._regions_left_out = 0
        self._open: list[OpenRegion] = []
        self._ended: Counter[str] = Counter()
        self._unmeasured = ""

    def now(self) -> tuple[int, int]:
        """Return the operation that ran last, or runs, and the time in ns."""
        return self.operation, time.monotonic_ns()

    def look(self) -> None:
        """Sample the memory, if it may have changed."""
        ledger = self.ledger
        if (ledger.dead or ledger.clock != self._seen) and ledger.sample():
            self._seen = ledger.clock

    def turned(self, phase: str) -> None:
        """Note that a phase begins."""
        if len(self._turns) >= _MOST_TURNS:
            self._turns_left_out += 1
        elif phase != self._turns[-1].phase:
            at, time_ns = self.now()
            self._turns.append(Turn(phase=phase, at=at, time_ns=time_ns))

    def begins(self, region: str) -> OpenRegion:
        """Note that a region begins."""
        opened = OpenRegion(region, len(self._open), self.now())
        self._open.append(opened)
        return opened

    def ended(self, opened: OpenRegion, *, failed: bool = False) -> None:
        """Note that a region ended, or that an exception ended it."""
        if opened not in self._open:
            return  # the timeline was taken before: it ended there
        self._open.remove(opened)
        occurrence = 0
        if not failed:
            occurrence = self._ended[opened.region]
            self._ended[opened.region] += 1
        if len(self._regions) >= _MOST_REGIONS:
            self._regions_left_out += 1
            return
        (begin, begin_ns), (end, end_ns) = opened.began, self.now()
        self._regions.append(
            RegionSpan(
                region=opened.region,
                begin=begin,
                begin_ns=begin_ns,
                end=end,
                end_ns=end_ns,
                occurrence=occurrence,
                depth=opened.depth,
                failed=failed,
            )
        )

    def forget(self, opened: OpenRegion) -> None:
        """Forget a region that was none: the test's body, once the test opens its own."""
        if opened in self._open:
            self._open.remove(opened)

    def unmeasured(self, reason: str) -> None:
        """Note that storages are no longer seen, and why."""
        self._unmeasured = self._unmeasured or reason

    def keep(self, peaks: Sequence[Peak]) -> None:
        """Keep the samples of these peaks, whatever is thinned out."""
        self.ledger.needed.update(peak.at for peak in peaks)

    def learn(self, claimed: Claimed) -> None:
        """Take note of what storages are, for stretches in which no region says it."""
        self._known.update(claimed)

    def work_out(self, began: int | None = None, claimed: Claimed | None = None) -> None:
        """Give the samples so far their categories.

        Args:
            began: the clock at which a region began that ends here; None: there was none.
            claimed: what its storages are, as its own reading has it.
        """
        if claimed is not None:
            self._known.update(claimed)
        split = len(self.ledger.clocks)
        if began is not None:
            split = bisect_left(self.ledger.clocks, began)
        blocks = self.ledger.blocks()
        self._curves.add(self.ledger, blocks, range(split), None, self._known)
        inside = range(split, len(self.ledger.clocks))
        its_own = self._known if claimed is None else claimed
        self._curves.add(self.ledger, blocks, inside, began, its_own)
        self.ledger.forget()
        # What has died since is in no sample to come.
        self._known = {home: claim for home, claim in self._known.items() if home() is not None}

    def timeline(self) -> Timeline:
        """Return what was recorded so far; regions that are open end here, for it."""
        while self._open:
            self.ended(self._open[-1], failed=True)
        self.look()
        self.work_out()
        self._curves.settle()
        kinds, calls, calls_left_out = self.calls.data(self._start_ns)
        curves = self._curves
        left_out = {
            "samples": curves.left_out + self.ledger.left_out,
            "turns": self._turns_left_out,
            "regions": self._regions_left_out,
            "calls": calls_left_out,
        }
        start = self._start_ns
        return Timeline(
            rank=self._rank,
            device=self._device,
            start_ns=start,
            operations=self.operation,
            at=() if self._unmeasured else tuple(curves.at),
            time_ns=() if self._unmeasured else tuple(ns - start for ns in curves.time_ns),
            memory={} if self._unmeasured else curves.memory(),
            live_unmeasured=self._unmeasured,
            tensors=() if self._unmeasured else curves.tensors(),
            alive={} if self._unmeasured else curves.alive(),
            turns=tuple(_since(start, turn) for turn in self._turns),
            regions=tuple(_region_since(start, region) for region in self._regions),
            kinds=kinds,
            calls=calls,
            saved=self.saved.curve(start),
            left_out={name: count for name, count in left_out.items() if count},
        )


def _since(start_ns: int, turn: Turn) -> Turn:
    return replace(turn, time_ns=turn.time_ns - start_ns)


def _region_since(start_ns: int, region: RegionSpan) -> RegionSpan:
    return replace(region, begin_ns=region.begin_ns - start_ns, end_ns=region.end_ns - start_ns)
