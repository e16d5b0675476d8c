"""The instruments of one rank, opened and closed in a fixed order."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from pytest_shardcheck.vocabulary.errors import UsageError

from .allocator import Allocator
from .brackets import Brackets
from .claims import claims_of, frameworks_claims_of
from .collectives import Collectives
from .compiled_code import CompiledCode
from .live_memory import LiveMemory
from .saved_activations import SavedActivations
from .surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_shardcheck.vocabulary.collectives import CollectivesReading
    from pytest_shardcheck.vocabulary.demands import Demands
    from pytest_shardcheck.vocabulary.frameworks import Frameworks
    from pytest_shardcheck.vocabulary.memory import LiveBytes
    from pytest_shardcheck.vocabulary.saved import SavedReading

    from . import collectives, live_report, saved_activations
    from .allocator import Peaks
    from .holdings import Holdings


@dataclass(slots=True, kw_only=True, eq=False)
class Windows:
    """The instruments' views of a region while it is open."""

    live: live_report.Window
    collectives: collectives.Window
    saved: saved_activations.Window | None
    allocator: Peaks


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the instruments have of a region that has ended; saved is None without hooks.

    `live_unmeasured` says why nothing of `live` is there.
    """

    live: Mapping[str, LiveBytes]
    live_phases: Mapping[str, Mapping[str, LiveBytes]]
    collectives: CollectivesReading
    saved: SavedReading | None
    live_unmeasured: str = ""
    allocated: Mapping[str, int] = field(default_factory=dict)
    reserved: Mapping[str, int] = field(default_factory=dict)


class Panel:
    """All instruments of a rank that follow what happens, as opposed to what is held at rest."""

    def __init__(
        self,
        device: str,
        demands: Demands,
        frameworks: Frameworks,
        on_phase: Callable[[str], None],
    ) -> None:
        """Set the instruments up for a rank whose own device is `device`.

        `on_phase` is called where a phase begins or ends that torch knows nothing of.
        """
        self._device = device
        self._demands = demands
        self._surroundings = Surroundings()
        self._live = LiveMemory(device, self._surroundings)
        self._collectives = Collectives(self._surroundings)
        self._saved = SavedActivations(
            self._surroundings, held=self._live.mark_saved, released=self._live.unmark_saved
        )
        self._allocator = Allocator(device, on_cpu=demands.allocated)
        self._compiled = CompiledCode()
        self._open = 0
        self._on_phase = on_phase
        self._brackets = Brackets(frameworks, self._phase_begins, self._phase_ends)

    def start(self) -> None:
        """Follow from now on; the modes and hooks are those of this thread and of new ones."""
        self._surroundings.start()
        self._allocator.start()
        if self._demands.allocated:
            self._live.settle_at_waits()
        self._collectives.start()
        self._compiled.start()
        self._saved.start()
        self._live.start()

    def can_stop(self) -> bool:
        """Tell whether `stop` may be called here: not inside a dispatch mode of the test's own."""
        return self._live.can_stop()

    def stop(self) -> None:
        """Leave nothing behind."""
        self._brackets.remove()
        self._live.stop()
        self._saved.stop()
        self._compiled.stop()
        self._collectives.stop()
        self._allocator.stop()
        self._surroundings.stop()

    def learn(self, held: Holdings) -> None:
        """Take the names of watched modules, and count what was there before we followed."""
        self._surroundings.learn(held.roots)
        self._saved.learn(chain(held.params, held.buffers))
        for claim in claims_of(held):
            self._live.join(claim.tensors)

    def note(self, held: Holdings) -> None:
        """Note what frameworks hold now: it may be gone when the open regions end."""
        if held.taught:
            self._live.claim(frameworks_claims_of(held))

    def open(self, region: str, held: Holdings, *, saved: bool) -> Windows:
        """Begin a region; `saved` installs saved-tensor hooks."""
        self.learn(held)
        if not self._open:
            self._surroundings.settle()
            if self._allocator.follows:
                gc.collect()  # or its first peak has the cycles that the live counter then frees
        self._open += 1
        self._brackets.put(held.things)
        self._compiled.why_unmeasured()
        ceilings = self._demands.ceilings_in(region, self._device)
        # The live counter last but for hooks, which allocate nothing: what opens is not measured.
        allocator = self._allocator.open()
        collectives = self._collectives.open()
        live = self._live.open(ceilings)
        return Windows(
            live=live,
            collectives=collectives,
            saved=self._saved.open() if saved else None,
            allocator=allocator,
        )

    def close(self, windows: Windows, held: Holdings) -> Measured:
        """End a region and return what was measured in it."""
        self._closed_one()
        # A trainer may have built what is watched only inside.
        self._surroundings.learn(held.roots)
        saved = self._saved.close(windows.saved) if windows.saved is not None else None
        live = self._live.close(windows.live, lambda: claims_of(held))
        collectives = self._collectives.close(windows.collectives)
        allocator = self._allocator.close(windows.allocator)
        if self._demands.allocated and self._live.other_threads:
            raise UsageError(
                "allocated= follows the allocator in the test's own thread, and other threads "
                "allocated tensors in this test; judge peak instead, which counts them"
            )
        unmeasured = self._compiled.why_unmeasured()
        return Measured(
            live={} if unmeasured else live.by_device,
            live_phases={phase: {} for phase in live.phases} if unmeasured else live.phases,
            live_unmeasured=unmeasured,
            collectives=collectives,
            saved=saved,
            allocated=allocator.allocated,
            reserved=allocator.reserved,
        )

    def drop(self, windows: Windows) -> None:
        """End a region of which nothing is wanted."""
        self._closed_one()
        if windows.saved is not None:
            self._saved.close(windows.saved)
        self._live.drop(windows.live)
        self._collectives.close(windows.collectives)
        self._allocator.close(windows.allocator)

    def _closed_one(self) -> None:
        self._open -= 1
        if not self._open:
            self._brackets.remove()

    def _phase_begins(self, phase: str) -> None:
        self._surroundings.begin(phase)
        if phase == "optimizer":
            self._live.step_begins()
        self._on_phase(phase)

    def _phase_ends(self, phase: str) -> None:
        self._on_phase(phase)
        self._surroundings.end()
        if phase == "optimizer":
            self._live.step_ended()

    def log(self) -> dict[str, Any]:
        """Return the whole test's collectives, to be held against those of other ranks."""
        return self._collectives.log()
