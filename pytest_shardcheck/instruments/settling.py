"""Make live figures repeatable: wait until a backend's threads have let go of finished work.

A gloo worker lets go of a collective's tensors some microseconds after `wait()` has returned, on a
busy machine much later. Before a figure counts, the workers that have something to let go of are
looked at until they sleep (their state in /proc, 5 us a thread).

The arguments of asynchronous work count until it was waited for, or until the backward that issued
it has ended (DDP waits in C++, where nobody sees it); what is still there when a step ends is
dropped then: program order, not completion time.

Limits: where there is no /proc the threads are given time a fixed number of times instead of being
looked at. Work waited for by its future, or by `synchronize`, counts until the backward or the step
ends. Each wait for workers is bounded, to about a second.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import c10d_tap
from ._torch_private import graph_task, work_class, works_in

if TYPE_CHECKING:
    from collections.abc import Callable


_TASKS = Path("/proc/self/task")
_WORKER = "pt_gloo_runloop"  # what torch calls gloo's threads
_MOST_LOOKS = 20_000
_PAUSE_S = 50e-6
_BLIND_LOOKS = 20  # where threads can't be looked at


class Workers:
    """The threads of this process that run gloo's collectives."""

    def __init__(self) -> None:
        """Know none yet."""
        self.visible = _TASKS.is_dir()
        self._stats: dict[str, int] = {}  # a worker to its open state file
        self._others: set[str] = set()
        self._unnamed = _name_of(str(os.getpid())) if self.visible else ""

    def asleep(self) -> bool:
        """Tell whether all of them sleep now."""
        self._look_for_new_ones()
        for thread, file in list(self._stats.items()):
            try:
                state = os.pread(file, 512, 0)
            except OSError:  # it has ended
                os.close(self._stats.pop(thread))
                continue
            if state[state.rindex(b")") + 2 : state.rindex(b")") + 3] != b"S":
                return False
        return True

    def close(self) -> None:
        """Close the files."""
        for file in self._stats.values():
            os.close(file)
        self._stats.clear()

    def _look_for_new_ones(self) -> None:
        for thread in os.listdir(_TASKS):
            if thread in self._stats or thread in self._others:
                continue
            name = _name_of(thread)
            if name == _WORKER:
                self._take(thread)
            elif name != self._unnamed:  # a thread has its parent's name until it takes its own
                self._others.add(thread)

    def _take(self, thread: str) -> None:
        try:
            self._stats[thread] = os.open(_TASKS / thread / "stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # it has ended
            return


class Pending:
    """Asynchronous work that nobody has waited for, with the tensors that it may use."""

    def __init__(self) -> None:
        """Begin with none."""
        self._works: dict[int, tuple[object, object, int]] = {}
        self._wait: Any = None

    def __bool__(self) -> bool:
        """Tell whether there is any."""
        return bool(self._works)

    def add(self, work: object, tensors: object, key: int | None = None) -> None:
        """Keep work until it was waited for: the object itself, or what `key` stands for."""
        self._works[id(work) if key is None else key] = (work, tensors, graph_task())

    def waited_for(self, key: int) -> None:
        """Let go of work."""
        self._works.pop(key, None)

    def drop_ended(self) -> bool:
        """Let go of work issued in a backward that has ended; tell whether there was any.

        A later number may be that of a backward inside: its outer one has not ended.
        """
        now = graph_task()
        return self._drop([key for key, (_, _, task) in self._works.items() if task > now])

    def drop_all(self) -> bool:
        """Let go of everything; tell whether there was anything."""
        return self._drop(list(self._works))

    def _drop(self, keys: list[int]) -> bool:
        for key in keys:
            work, _, _ = self._works.pop(key, (None, None, -1))
            _finish(work)
        return bool(keys)


class _Copies:
    """The works of gloo's reduce_scatters, each of which has a copy of its input.

    That of a functional collective is C++'s alone: held here, a worker is not the last to hold it.
    """

    def __init__(self) -> None:
        self.works: list[Any] = []

    def issued(self, call: c10d_tap.Tapped) -> bool:
        return call.descriptor.operation == "reduce_scatter"

    def returned(self, token: bool, result: object) -> None:
        if token:
            self.works += works_in(result)

    def failed(self, token: bool) -> None:
        """Do nothing: there is no work."""


class Settling:
    """Wait until what the backend's workers still hold is only what pending work uses."""

    def __init__(self, drain: Callable[[], bool]) -> None:
        """Settle with `drain`, which takes in the storages that ended and tells if any did."""
        self.pending = Pending()
        self.dirty = False
        # After each wait, too: so that no worker is the last to let go of anything. The profiler
        # of the allocator's events does not see what they release.
        self.at_waits = False
        self._copies = _Copies()
        self._drain = drain
        self._workers = Workers()
        self._original: Any = None

    def start(self) -> None:
        """Watch `Work.wait`."""
        if self.at_waits:
            c10d_tap.listen(self._copies)
        work = work_class()
        if work is None:
            return
        original = self._original = work.wait
        note = self.finished

        def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(self, *args, **kwargs)
            finally:
                note(id(self))

        work.wait = wait

    def stop(self) -> None:
        """Undo `start`."""
        c10d_tap.stop_listening(self._copies)
        self._copies.works.clear()
        if self._original is not None:
            work_class().wait = self._original
            self._original = None
        self.pending.drop_all()
        self._workers.close()

    def issued(self, work: object, tensors: object, key: int | None = None) -> None:
        """Take note of a call that reached a process group; None is one without work."""
        self.dirty = True
        if work is not None or key is not None:
            self.pending.add(work, tensors, key)

    def finished(self, key: int) -> None:
        """Take note that the work of this key was waited for."""
        self.dirty = True
        if self.at_waits:
            self.settle()  # while we hold the tensors, which may have no other holder here
            self._copies.works.clear()  # `is_completed` never says so of these
        self.pending.waited_for(key)

    def step_ended(self) -> None:
        """Drop what nobody waited for."""
        if self.pending and self.pending.drop_all():
            self.dirty = True

    def settle(self) -> None:
        """Return once no worker holds what no pending work uses; called without the lock."""
        if self.pending:
            self.pending.drop_ended()
        self._drain()
        if not self.dirty:
            return
        if self._workers.visible:
            self._look()
        else:
            self._give_time()
        self.dirty = bool(self.pending)

    def _look(self) -> None:
        quiet = 0
        for look in range(_MOST_LOOKS):
            # Twice: one that waits for the interpreter's lock sleeps too, and gets it at a look.
            quiet = quiet + 1 if self._workers.asleep() and not self._drain() else 0
            if quiet == 2:
                return
            if look > 4:
                time.sleep(_PAUSE_S)

    def _give_time(self) -> None:
        for _ in range(_BLIND_LOOKS):
            time.sleep(_PAUSE_S)
            self._drain()


def _finish(work: Any) -> None:
    """Give work that nobody waits for a bounded time to end by itself."""
    if work is None or not hasattr(work, "is_completed"):
        return
    for _ in range(_MOST_LOOKS // 5):
        if work.is_completed():
            return
        time.sleep(_PAUSE_S)


def _name_of(thread: str) -> str:
    try:
        return (_TASKS / thread / "comm").read_text().strip()
    except OSError:  # it has ended
        return ""
