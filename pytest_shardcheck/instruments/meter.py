"""Open and close the regions of one rank and keep their readings."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from pytest_shardcheck.vocabulary.demands import Demands
from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users
from pytest_shardcheck.vocabulary.frameworks import Frameworks, NoFrameworks
from pytest_shardcheck.vocabulary.readings import MemoryReading, Reading

from . import saved_hooks, threads
from ._torch_private import hide_from_compiler
from .holdings import Holdings
from .panel import Panel
from .regions import Measurement, Phase, Region, RegionHooks
from .state import Watched, measure_state, with_larger_grads

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.utils.hooks import RemovableHandle

__tracebackhide__ = hide_from_users

BODY = "body"


class Meter:
    """The regions of one rank, from its first to `close()`.

    `readings` are in the order in which their regions ended. Gradients are the larger of those at
    a region's end and those at the entry of any `Optimizer.step` inside it.

    Limits: an optimizer that is no `torch.optim.Optimizer` has such an entry only if it was watched
    when the region began; otherwise gradients that it clears before the region ends read 0.
    """

    def __init__(
        self,
        rank: int,
        device: str,
        demands: Demands | None = None,
        frameworks: Frameworks | None = None,
    ) -> None:
        """Measure for a rank whose own device is `device` ("cpu", "cuda:0"), from now on."""
        frameworks = frameworks or NoFrameworks()
        self.readings: list[Reading] = []
        # The names of regions that an exception ended: they have no reading, and were opened.
        self.abandoned: list[str] = []
        self._rank = rank
        self._device = _indexed(device)
        self._demands = demands or Demands()
        self._panel = Panel(self._device, self._demands, frameworks, self._phase_turns)
        self._open: list[Region] = []
        self._ended: Counter[str] = Counter()
        # What is watched outside any region; the body counts only where a test opens none.
        self._whole_test = Watched.taught_by(frameworks)
        self._body: Region | None = Region(name=BODY, watched=self._whole_test)
        self._hook: RemovableHandle | None = None
        self._closed = False
        self._retired = ""
        self._stopped = False
        self._panel.start()

    def begin_body(self) -> None:
        """Begin the test's body, which is the region where the test opens none."""
        if self._body is not None and self._body.windows is None:
            self._body.windows = self._panel.open(
                BODY, Holdings(self._whole_test.open()), saved=self._demands.saved
            )

    def measure(self, *watched: object, region: str = "step", **named: object) -> Measurement:
        """Return a region to enter with `with`.

        Args:
            watched: modules, optimizers, engines, pipeline stages, parameters, tensors, containers
                and nested lists of them. An optimizer alone gives `optimizer` only: parameters and
                gradients are those of watched modules.
            region: its name; a repeated name makes occurrences.
            named: the same, each also kept as a subtotal in `memory.parts`.

        Raises:
            UsageError: something that can't be watched, or no name.
        """
        return self._measurement(self._region(region, watched, named))

    def start(self, *watched: object, region: str = "step", **named: object) -> Measurement:
        """Open a region that `stop()` ends, for a loop that is not ours; see `measure`."""
        new = self._region(region, watched, named)
        new.started = True
        self._enter(new)
        return self._measurement(new)

    def watch(self, *things: object, **named: object) -> None:
        """Watch more things in the innermost open region; outside any, in the whole test.

        Raises:
            UsageError: something that can't be watched.
        """
        if self._open:
            self._open[-1].watched.add(*things, **named)
            return
        self._whole_test.add(*things, **named)
        if self._stopped:
            return
        self._panel.learn(Holdings(self._whole_test.open()))
        if self._body is not None:
            self._listen()

    def stop(self) -> Measurement:
        """End the region that `start()` opened last and return it, to be read.

        Raises:
            UsageError: no region is open, or a `with` block inside it is.
        """
        if not self._open:
            raise UsageError("stop() without start(): no region is open; call start() first")
        last = self._open[-1]
        if not last.started:
            raise UsageError(
                f"stop() inside the `with` block of region {last.name!r}, which ends by itself; "
                "call stop() after the block"
            )
        self._end(last)
        return self._measurement(last)

    def close(self) -> None:
        """End what is still open, or measure the whole body if the test opened no region."""
        if self._closed:
            return
        self._closed = True
        try:
            while self._open:
                self._end(self._open[-1])
            if self._body is not None:
                self.begin_body()  # a test that was never called has an empty one
                self._record(self._body, implicit=True)
        finally:
            self._body = None
            self._unlisten()
            if not self._stopped:
                self._panel.stop()

    def regions_open(self) -> list[str]:
        """Return the names of the regions that are open; the body counts until one was opened."""
        return [BODY] if self._body is not None else [region.name for region in self._open]

    def can_retire(self) -> bool:
        """Tell whether nothing that was opened would miss the instruments."""
        return not self.regions_open() and self._panel.can_stop()

    def retire(self, why: str, *, stop: bool = True) -> None:
        """Open no region any more in this test, so that what follows runs without instruments.

        To go on later was rejected: what was allocated in between would be unknown, and a region
        would take it for its own where it is first used. `why` follows "can't open region: ";
        without `stop` the instruments go on all the same.
        """
        self._retired = why
        if stop and not self._stopped:
            self._stopped = True
            self._panel.stop()

    def log(self) -> dict[str, Any]:
        """Return the collectives of the whole test as plain data, for the session to compare."""
        return self._panel.log()

    def _measurement(self, region: Region) -> Measurement:
        hooks = RegionHooks(enter=self._enter, end=self._end, drop=self._drop)
        return Measurement(region, hooks)

    def _region(self, name: str, things: tuple[object, ...], named: dict[str, object]) -> Region:
        if not isinstance(name, str) or not name:
            raise UsageError(f"region={name!r}: expected a name, such as region='step'")
        watched = self._whole_test.copy()
        watched.add(*things, **named)
        return Region(name=name, watched=watched)

    def _enter(self, region: Region) -> None:
        if self._retired:
            raise UsageError(f"can't open region {region.name!r}: {self._retired}")
        if self._closed or region.phase is not Phase.NEW:
            why = "the test has ended" if self._closed else "it was opened before"
            raise UsageError(
                f"can't open region {region.name!r}: {why}; call measure() anew for each block"
            )
        self._forget_body()
        region.phase = Phase.OPEN
        region.outermost = not self._open
        self._open.append(region)
        self._listen()
        region.windows = self._panel.open(region.name, Holdings(region.watched.open()), saved=True)

    def _forget_body(self) -> None:
        if self._body is not None and self._body.windows is not None:
            self._panel.drop(self._body.windows)
        self._body = None

    def _end(self, region: Region) -> None:
        inner = self._open[-1]
        try:
            if inner is not region:
                raise UsageError(
                    f"region {region.name!r} ended while region {inner.name!r} inside it is open; "
                    "call stop() before the block ends"
                )
            self._record(region, implicit=False)
        except BaseException:
            self._drop(region)
            raise
        self._open.pop()
        self._unlisten_if_idle()

    def _drop(self, region: Region) -> None:
        """Forget a region that an exception ended, and those still open inside it."""
        while region in self._open:
            dropped = self._open.pop()
            dropped.phase = Phase.FAILED
            if dropped.windows is not None:
                self._panel.drop(dropped.windows)
                dropped.windows = None
            self.abandoned.append(dropped.name)
        self._unlisten_if_idle()

    def _record(self, region: Region, *, implicit: bool) -> None:
        windows, region.windows = region.windows, None
        assert windows is not None, "a region has windows from its beginning to its end"
        held = Holdings(region.watched.open())
        measured = self._panel.close(windows, held)
        state = measure_state(region.watched, self._device, held=held)
        if region.before_step is not None:
            state = with_larger_grads(state, region.before_step)
        region.reading = Reading(
            rank=self._rank,
            region=region.name,
            occurrence=self._ended[region.name],
            outermost=region.outermost,
            implicit=implicit,
            memory=MemoryReading(
                device=self._device,
                by_device=state.by_device,
                parts=state.parts,
                live_by_device=measured.live,
                live_unmeasured=measured.live_unmeasured,
                allocated_by_device=measured.allocated,
                reserved_by_device=measured.reserved,
            ),
            collectives=measured.collectives,
            saved=measured.saved,
            live_phases=measured.live_phases,
        )
        region.phase = Phase.ENDED
        # A reading must not keep a model alive.
        region.watched, region.before_step = Watched(), None
        self._ended[region.name] += 1
        self.readings.append(region.reading)

    def _listen(self) -> None:
        if self._hook is None:
            self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _unlisten_if_idle(self) -> None:
        if not self._open:
            self._unlisten()

    def _unlisten(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _before_step(self, _: Optimizer, __: tuple[Any, ...], ___: dict[str, Any]) -> None:
        self._phase_turns("optimizer")

    def _phase_turns(self, phase: str) -> None:
        """Note what frameworks hold now, and measure gradients while a trainer still has them."""
        for region in self._open or ([self._body] if self._body else []):
            held = Holdings(region.watched.open())
            self._panel.note(held)
            if phase != "optimizer":
                continue
            now = measure_state(region.watched, self._device, grads_only=True, held=held)
            before = region.before_step
            region.before_step = now if before is None else with_larger_grads(now, before)


def _indexed(device: str) -> str:
    """Return the device as tensors name theirs: "cuda" means the current one."""
    return f"cuda:{torch.cuda.current_device()}" if device == "cuda" else device


def _hide_from_compiler() -> None:
    """Hide what hooks of ours can call: the step of a compiled optimizer has us read all state.

    The standard library's functions too: dynamo compiles a WeakKeyDictionary's, and fails where a
    key is a compiled module. Not what belongs to others, which some of ours run in their midst.
    """
    for name, module in list(sys.modules.items()):
        if name.startswith("pytest_shardcheck."):
            ours = name.startswith(f"{__package__}.") and module not in (saved_hooks, threads)
            hide_from_compiler([module], callees=ours)


_hide_from_compiler()  # here, since all modules of instruments are loaded by now
