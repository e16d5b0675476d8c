"""Live and peak memory: the bytes of all tensor storages alive on the rank, and what they were.

Counted at the storage, at operator boundaries, from `start` on, on each device under its own name.
Figures are settled before they count (`settling`), and seen from a dispatch mode (`dispatch`).

Cycles that nobody reaches any more are collected where an outermost region begins and ends.

Limits: those of both. Cycles that a step leaves behind count until Python collects them. What a
forked child allocates (a DataLoader's worker) is not counted. A storage that existed before `start`
joins when it is watched or first used, and looks born then.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ._torch_private import graph_task, innermost_dispatch_mode
from .blocks import GIVEN, GRADIENT, Ledger
from .dispatch import Ride, StorageMode, Witness, to_enter
from .live_report import Live, Window, report
from .settling import Settling
from .tensors import readable_tensors, tensors_in
from .threads import enter_in_new_threads, leave_new_threads_alone
from .timeline import RecordingMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import Tensor
    from torch.optim import Optimizer

    from .blocks import Block, Device, Home, Peak
    from .claims import Claim
    from .surroundings import Surroundings
    from .timeline import Recorder

_running: weakref.WeakSet[LiveMemory] = weakref.WeakSet()


class LiveMemory:
    """Count the storages alive on a rank between `start` and `stop`, and say what they were."""

    def __init__(
        self, device: str, surroundings: Surroundings, recorder: Recorder | None = None
    ) -> None:
        """Count for a rank whose own device is `device`, which is reported even when empty.

        `recorder` takes down a timeline beside.
        """
        self._surroundings = surroundings
        self._recorder = recorder
        self._ledger = Ledger() if recorder is None else recorder.ledger
        self._ledger.device_of(torch.device(device))
        self._ledger.follow(self._peaks)
        self._settling = Settling(self._ledger.drain)
        self._witness = Witness(self._ledger, surroundings, self._settling, self._turn, self._rise)
        self._mode: Any = self._for_thread()
        self._windows: list[Window] = []
        self._steps = 0  # that run now, one inside another
        self._leader = self._main = threading.main_thread().ident
        self._undo: list[Callable[[], None]] = []

    @property
    def other_threads(self) -> bool:
        """Tell whether threads beside the main one have allocated since `start`."""
        return self._witness.other_threads

    def settle_at_waits(self) -> None:
        """Let no backend's thread be the last to let go of a collective's tensors."""
        self._settling.at_waits = True

    def start(self) -> None:
        """Follow this thread, and those that start from now on."""
        hooks = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ended),
        ]
        self._undo = [hook.remove for hook in hooks]
        self._undo.append(_watch_resizes(self._resized))
        self._settling.start()
        self._undo.append(self._settling.stop)
        self._surroundings.on_inputs = self._given
        self._witness.phase = self._surroundings.phase()
        _running.add(self)
        enter_in_new_threads(self._for_thread)
        self._mode.__enter__()

    def can_stop(self) -> bool:
        """Tell whether ours is the innermost dispatch mode: only that one can be left."""
        return isinstance(self._mode, Ride) or innermost_dispatch_mode() is self._mode

    def stop(self) -> None:
        """Undo all that `start` did; threads that run are no longer followed."""
        self._mode.__exit__(None, None, None)
        leave_new_threads_alone(self._for_thread)
        _running.discard(self)
        self._witness.off = True
        self._surroundings.on_inputs = None
        while self._undo:
            self._undo.pop()()

    def switch_off(self) -> None:
        """Count nothing any more: this is a forked child."""
        self._witness.off = True

    def join(self, tensors: Iterable[Tensor]) -> None:
        """Count storages that existed before `start`, as if they were allocated now."""
        for tensor in tensors:
            self._witness.look(readable_tensors(tensor), "")
        self._witness.check()

    def open(self, ceilings: Mapping[str, int]) -> Window:
        """Begin a region.

        Args:
            ceilings: device ("cpu", "cuda:0", or "cuda" for each) to the smallest ceiling in bytes
                whose first crossing is looked for.
        """
        self._collect_garbage(outermost=not self._windows)
        if not self._windows:
            self._steps = 0  # what an exception ended
        self._settling.settle()
        self._witness.phase = self._surroundings.phase()
        if self._recorder is not None:
            self._recorder.turned(self._witness.phase)
        window = Window(ceilings, self._ledger, self._witness.phase, self._surroundings.line())
        self._windows.append(window)
        self._set_thresholds()
        return window

    def close(self, window: Window, claims: Callable[[], Iterable[Claim]]) -> Live:
        """End a region and say what was alive in it.

        Args:
            window: what `open` returned.
            claims: yields categories with their tensors, from what is watched now.
        """
        claimed = {**window.claimed, **self._claimed(claims())}
        outermost = len(self._windows) == 1
        if outermost:
            self._settling.step_ended()
        self._collect_garbage(outermost=outermost)
        self._settling.settle()
        window.end(self._witness.phase)
        live = report(window, self._ledger, claimed)
        if self._recorder is not None:
            self._recorder.keep(tuple(window.all_peaks()))
            self._recorder.look()
        self.drop(window)
        if self._recorder is not None and outermost:
            self._recorder.work_out(window.began, claimed)
        return live

    def explain(self, claims: Iterable[Claim]) -> None:
        """Tell a timeline what tensors are, also where no region ends that would."""
        if self._recorder is not None:
            self._recorder.learn(self._claimed(claims))

    def claim(self, claims: Iterable[Claim]) -> None:
        """Note what tensors are now: they may be gone when the open regions end."""
        claimed = self._claimed(claims)
        for window in self._windows:
            window.claimed.update(claimed)

    def drop(self, window: Window) -> None:
        """Forget a region that an exception ended."""
        self._windows.remove(window)
        self._set_thresholds()

    def mark_saved(self, tensor: Tensor) -> tuple[Home, ...]:
        """Note that autograd holds a tensor from now on; give the result to `unmark_saved`."""
        homes = tuple(self._homes(tensor))
        for home in homes:
            self._ledger.hold(home)
        return homes

    def unmark_saved(self, homes: tuple[Home, ...]) -> None:
        """Note that autograd let go of what `mark_saved` returned; from any thread."""
        for home in homes:
            self._ledger.let_go(home)

    def _for_thread(self) -> StorageMode | Ride:
        if self._recorder is None:
            return to_enter(StorageMode(self._witness))
        return to_enter(RecordingMode(self._witness, self._recorder))

    def _peaks(self) -> Iterator[Peak]:
        for window in self._windows:
            yield from window.all_peaks()

    def _claimed(self, claims: Iterable[Claim]) -> dict[Home, Claim]:
        claimed: dict[Home, Claim] = {}
        for claim in claims:
            for tensor in claim.tensors:
                for home in self._homes(tensor):
                    # Without the tensors: a reading must not keep any alive.
                    claimed.setdefault(home, claim._replace(tensors=()))
        return claimed

    def _homes(self, tensor: Tensor) -> Iterator[Home]:
        """Yield where a tensor lives, which joins the count if it has not yet."""
        for plain in readable_tensors(tensor):
            home = self._ledger.home_of(plain)
            if home is None:
                self.join((plain,))
                home = self._ledger.home_of(plain)
            if home is not None:
                yield home

    def _collect_garbage(self, *, outermost: bool) -> None:
        """Free cycles that nobody reaches: when Python would do it depends on what ran before."""
        if outermost:
            gc.collect()

    def _turn(self, phase: str) -> None:
        """Go from one phase to another, in the threads that decide it.

        A thread beside the training (prefetching, logging) is always in forward: it says nothing.
        """
        thread = threading.get_ident()
        if phase != "forward":
            self._leader = thread
        elif thread not in (self._leader, self._main):
            return
        if self._windows:
            self._settling.settle()
            for window in self._windows:
                window.turn(self._witness.phase, phase)
        self._witness.phase = phase
        self._set_thresholds()
        if self._recorder is not None:
            self._recorder.turned(phase)

    def _rise(self, block: Block) -> None:
        """Take down new peaks, if the device is as full once what workers held is gone."""
        self._settling.settle()
        with self._ledger.lock:
            for window in self._windows:
                window.rise(self._witness.phase, block)
            self._set_threshold(block.device)

    def _set_thresholds(self) -> None:
        for device in list(self._ledger.devices.values()):
            if device is not None:
                self._set_threshold(device)

    def _set_threshold(self, device: Device) -> None:
        phase = self._witness.phase
        lowest = (window.threshold(device, phase) for window in self._windows)
        device.threshold = min(lowest, default=float("inf"))

    def _given(self, values: tuple[object, ...]) -> None:
        for tensor in tensors_in(values):
            self.join((tensor,))
            self._ledger.mark(readable_tensors(tensor), GIVEN)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        if not self._witness.off:
            self._witness.resized(storage, "resize_")
            self._witness.check()
            if self._recorder is not None:
                self._recorder.look()

    def step_begins(self) -> None:
        """Note that a step begins, of an optimizer or of a framework's engine."""
        self._steps += 1

    def _step_begins(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        """Mark gradients: loops clear them before their region ends, or in the next one."""
        if is_compiling():
            return
        self.step_begins()
        for group in optimizer.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._ledger.mark(readable_tensors(param.grad), GRADIENT)

    def _step_ended(self, *_: object) -> None:
        if not is_compiling():
            self.step_ended()

    def step_ended(self) -> None:
        """Note that the step that began last has ended."""
        # An optimizer inside another (ZeroRedundancyOptimizer's) ends no step of its own.
        self._steps = max(0, self._steps - 1)
        # Steps in a backward's hooks end while its collectives run.
        if graph_task() == -1:
            self._settling.step_ended()
            if not self._steps:
                for window in self._windows:
                    window.step_ends.append(self._ledger.clock)


def _watch_resizes(note: Callable[[torch.UntypedStorage], None]) -> Callable[[], None]:
    """Call `note` after each resize from Python (FSDP's); return what undoes it."""
    storage_class: Any = torch.UntypedStorage
    own = storage_class.__dict__.get("resize_")
    original = storage_class.resize_

    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        note(storage)
        return result

    def undo() -> None:
        if own is None:
            del storage_class.resize_
        else:
            storage_class.resize_ = own

    storage_class.resize_ = resize_
    return undo


def _switch_off() -> None:
    for memory in list(_running):
        memory.switch_off()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_switch_off)
