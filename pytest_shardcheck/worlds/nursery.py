"""The warm process that forks the ranks of every world. Runs in the child.

One thread, one loop, no torch operation: so no CUDA context and no OpenMP pool exist when it forks.
It never blocks in ``waitpid``: a rank that hangs must not keep the next order waiting.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from pytest_shardcheck.vocabulary.errors import HarnessError
from pytest_shardcheck.worlds import lifeline, rendezvous
from pytest_shardcheck.worlds.channel import Channel
from pytest_shardcheck.worlds.child import Collected, find, settle_before_fork
from pytest_shardcheck.worlds.orders import Order
from pytest_shardcheck.worlds.processes import ended
from pytest_shardcheck.worlds.rank import run_rank

_LISTENING_FIRST = 1  # the first descriptor of an order is the world's listening socket
_PER_RANK = 2  # then, for each rank, its channel and the pipe of its output


@dataclass
class _Brood:
    """The processes of one world."""

    group: int
    line: int
    size: int
    listener: socket.socket
    ranks: dict[int, int]  # pid to the place of its rank among those that run
    ended: dict[int, int] = field(default_factory=dict)  # pid to wait status
    keeper: int | None = None


def serve(collected: Collected, channel: Channel, lifeline_fd: int) -> NoReturn:
    """Fork worlds as the session orders them until it leaves."""
    from pytest_shardcheck.instruments import c10d_tap

    c10d_tap.install()
    # See the bootstrap: what test files do is over, and ranks set their own.
    sys.modules["torch"].set_num_threads.allowed = True
    if "numpy" in sys.modules:
        # Ranks seed it: it is 11 ms once here, or in each of them.
        preload(["numpy.random"])
    settle_before_fork(collected.session.config)
    channel.send({"kind": "ready", "unsafe": collected.unsafe})
    _Nursery(collected, channel, lifeline_fd).run()
    os._exit(0)


class _Nursery:
    def __init__(self, collected: Collected, channel: Channel, lifeline_fd: int) -> None:
        self._collected = collected
        self._channel = channel
        self._lifeline_fd = lifeline_fd
        self._broods: list[_Brood] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(channel, selectors.EVENT_READ, "order")
        self._wakeup, self._wakeup_write = socket.socketpair()
        for end in (self._wakeup, self._wakeup_write):
            end.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, "child")
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup_write.fileno(), warn_on_full_buffer=False)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data == "order":
                    if not self._take_order():
                        return
                elif key.data == "child":
                    self._wakeup.recv(4096)
                    self._reap()
                elif key.data in self._broods:  # not buried since it was dialled
                    self._start_keeper(key.data)

    def _take_order(self) -> bool:
        received = self._channel.receive()
        if received is None:
            return False
        message, fds = received
        if message["kind"] == "preload":
            preload(message["modules"])
            settle_before_fork(self._collected.session.config)
            return True
        order = Order.from_json(message["order"])
        for _ in order.spec.running:
            part = self._channel.receive()
            if part is None:
                return False
            fds += part[1]
        try:
            item = find(self._collected, order)
        except HarnessError as error:
            for fd in fds:
                os.close(fd)
            self._channel.send({"kind": "refused", "why": str(error)})
            return True
        self._fork_world(item, order, fds)
        return True

    def _fork_world(self, item: pytest.Item, order: Order, fds: list[int]) -> None:
        line = lifeline.open_line(self._lifeline_fd)
        pids: dict[int, int] = {}
        group = 0
        for place, rank in enumerate(order.spec.running):
            pid = _fork()
            if pid == 0:
                with _never_to_return():
                    _in_child(group)
                    self._drop_everything(fds, keep=_rank_fds(fds, place))
                    channel_fd, output_fd = _rank_fds(fds, place)
                    run_rank(item, order, rank, Channel.from_fd(channel_fd), output_fd)
            group = group or pid
            _set_group(pid, group)
            if place == 0:
                lifeline.aim(line, group)
            pids[pid] = place
        listener = socket.socket(fileno=fds[0])
        for fd in fds[_LISTENING_FIRST:]:
            os.close(fd)
        brood = _Brood(group, line, order.spec.size, listener, pids)
        self._broods.append(brood)
        self._selector.register(listener, selectors.EVENT_READ, brood)
        self._channel.send({"kind": "born", "group": group, "pids": list(pids)})

    def _start_keeper(self, brood: _Brood) -> None:
        """Fork the process that answers on MASTER_PORT, now that someone has dialled it."""
        self._selector.unregister(brood.listener)
        pid = _fork()
        if pid == 0:
            with _never_to_return():
                _in_child(brood.group)
                self._drop_everything([], keep=())
                rendezvous.keep_store(brood.listener, brood.size)
        _set_group(pid, brood.group)
        brood.keeper = pid

    def _reap(self) -> None:
        for brood in list(self._broods):
            for pid, place in brood.ranks.items():
                if pid not in brood.ended and (status := ended(pid)) is not None:
                    brood.ended[pid] = status
                    self._channel.send(
                        {"kind": "exit", "group": brood.group, "place": place, "status": status}
                    )
            if len(brood.ended) == len(brood.ranks):
                self._bury(brood)

    def _bury(self, brood: _Brood) -> None:
        """Kill what the ranks left behind, then give their process ids back to the kernel.

        The zombies keep the group's number from being reused until here.
        """
        self._broods.remove(brood)
        os.killpg(brood.group, signal.SIGKILL)
        for pid in (*brood.ranks, *([brood.keeper] if brood.keeper else [])):
            os.waitpid(pid, 0)
        if brood.keeper is None:
            self._selector.unregister(brood.listener)
        brood.listener.close()
        os.close(brood.line)
        self._channel.send({"kind": "buried", "group": brood.group})

    def _drop_everything(self, fds: list[int], keep: tuple[int, ...]) -> None:
        """Close, in a child, what belongs to the nursery and to other ranks."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._channel.close()
        self._wakeup.close()
        self._wakeup_write.close()
        for fd in fds:
            if fd not in keep:
                os.close(fd)


def preload(modules: list[str]) -> None:
    """Import what a rank had to import, so that the next ones need not: DDP's first use is 1.2 s.

    Importing all that any rank might need was rejected: it is 2 s before the first world.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            # Some names in sys.modules are no modules that could be imported (torch.ops).
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns of any thread; those of OpenBLAS are idle, and ours is the only other.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@contextlib.contextmanager
def _never_to_return() -> Generator[None]:
    """End a child where its own code ends or raises: nothing may unwind into the nursery's loop."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _in_child(group: int) -> None:
    os.setpgid(0, group)


def _set_group(pid: int, group: int) -> None:
    """Put a child into the world's group from here too: whoever comes first wins."""
    with contextlib.suppress(PermissionError):  # it has put itself there and is gone already
        os.setpgid(pid, group)


def _rank_fds(fds: list[int], place: int) -> tuple[int, int]:
    first = _LISTENING_FIRST + _PER_RANK * place
    return fds[first], fds[first + 1]
