"""Start worlds as fresh interpreters, one a rank, where fork is unsafe. Runs in the session."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from pytest_shardcheck.vocabulary.errors import HarnessError
from pytest_shardcheck.worlds import clock, interpreter
from pytest_shardcheck.worlds.lifeline import Lifeline
from pytest_shardcheck.worlds.orders import Order, Startup
from pytest_shardcheck.worlds.processes import Processes, ended


@dataclass
class _SpawnedProcesses(Processes):
    interpreters: list[subprocess.Popen[bytes]] = field(default_factory=list)


class Spawner:
    """Starts every rank of every world anew; a ``Launcher``."""

    def __init__(self, startup: Startup, lifeline: Lifeline, log: Path, threads: int) -> None:
        """Start nothing yet: an order names the file to collect."""
        self._startup = startup
        self._lifeline = lifeline
        self._log = log
        self._threads = threads

    def launch(self, order: Order, listener: socket.socket) -> Processes:
        """Start the interpreters of a world; they join when they have imported torch."""
        world = _SpawnedProcesses(log=self._log)
        for place, rank in enumerate(order.spec.running):
            process, channel = interpreter.start(
                "rank", self._startup, self._lifeline, self._log, self._threads
            )
            read, write = os.pipe()
            os.set_blocking(read, False)
            fds = [write, listener.fileno()] if place == 0 else [write]
            try:
                channel.send({"kind": "order", "order": order.to_json(), "rank": rank}, fds)
            except OSError as error:
                raise HarnessError(f"rank {rank} ended while it was started: {error}") from error
            finally:
                os.close(write)
            world.interpreters.append(process)
            world.channels.append(channel)
            world.outputs.append(read)
            world.pids.append(process.pid)
            world.groups.append(process.pid)  # each was started in a session of its own
        return world

    def learn(self, modules: list[str]) -> None:
        """Do nothing: each interpreter imports what it needs."""

    def wait_fds(self, world: Processes) -> list[int]:
        """Return nothing: the end of a rank's channel is what wakes the session."""
        return []

    def update(self, world: Processes) -> None:
        """Ask each interpreter whether it has ended."""
        assert isinstance(world, _SpawnedProcesses)
        for place, process in enumerate(world.interpreters):
            if place not in world.exits and ended(process.pid) is not None:
                self._reap(world, place, 0)

    def bury(self, world: Processes, timeout_s: float) -> None:
        """Reap the interpreters."""
        assert isinstance(world, _SpawnedProcesses)
        for place in range(len(world.interpreters)):
            if place not in world.exits:
                self._reap(world, place, timeout_s)

    def close(self) -> None:
        """Do nothing: no process outlives its world."""

    def _reap(self, world: _SpawnedProcesses, place: int, timeout_s: float) -> None:
        process = world.interpreters[place]
        deadline = clock.now() + timeout_s
        while ended(process.pid) is None:
            if clock.now() > deadline:
                raise HarnessError(
                    f"a rank (process {process.pid}) was killed, but did not end in "
                    f"{timeout_s:g} s: look for processes in state D, waiting for a disk"
                )
            time.sleep(0.005)
        # What the rank left behind is in its group; the number is ours until the rank is reaped.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        world.groups.remove(process.pid)
        world.exits[place] = process.wait()
