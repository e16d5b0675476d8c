"""Start worlds by asking the nursery to fork. Runs in the session."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

from pytest_shardcheck.vocabulary.errors import HarnessError
from pytest_shardcheck.worlds import clock, interpreter
from pytest_shardcheck.worlds.channel import wait_readable
from pytest_shardcheck.worlds.lifeline import Lifeline
from pytest_shardcheck.worlds.orders import Order, Startup
from pytest_shardcheck.worlds.processes import Processes, RankEnds, kill

_ORDER_TIMEOUT_S = 60.0


class Nursery:
    """The session's side of the warm process; a ``Launcher``."""

    def __init__(self, startup: Startup, lifeline: Lifeline, log: Path, threads: int) -> None:
        """Start the process; it is ready some seconds later, see ``wait_until_ready``."""
        self._log = log
        self._process, self._channel = interpreter.start("nursery", startup, lifeline, log, threads)
        # By group, from the first that is heard of it: ranks may end before their birth is heard.
        self._exits: dict[int, dict[int, int]] = {}
        self._buried: set[int] = set()
        self._answers: list[dict[str, Any]] = []
        self._ready = False

    def wait_until_ready(self, timeout_s: float) -> dict[str, str]:
        """Wait for the nursery's collection; return the files that make forking unsafe, and why.

        Raises:
            HarnessError: It died, or took longer than ``timeout_s``.
        """
        if self._ready:
            return {}
        answer = self._next_answer(timeout_s, "collected the world tests")
        self._ready = True
        unsafe: dict[str, str] = answer["unsafe"]
        return unsafe

    def launch(self, order: Order, listener: socket.socket) -> Processes:
        """Fork the ranks of a world."""
        ends: list[RankEnds] = []
        try:
            ends.extend(RankEnds.make() for _ in order.spec.running)
        except OSError:
            for end in ends:
                end.drop_theirs()
                end.drop_ours()
            raise
        try:
            self._channel.send({"kind": "order", "order": order.to_json()}, [listener.fileno()])
            for end in ends:
                self._channel.send({"kind": "rank"}, [end.their_channel.fileno(), end.their_output])
        except OSError as error:
            raise self._died("took an order") from error
        finally:
            for end in ends:
                end.drop_theirs()
        answer = self._next_answer(_ORDER_TIMEOUT_S, "forked a world")
        group = answer.get("group")
        return Processes(
            log=self._log,
            channels=[end.channel for end in ends],
            outputs=[end.output for end in ends],
            pids=answer.get("pids", []),
            groups=[] if group is None else [group],
            exits={} if group is None else self._exits.setdefault(group, {}),
            refused=answer.get("why"),
        )

    def learn(self, modules: list[str]) -> None:
        """Have the nursery import what ranks had to import; it does so before the next order."""
        with contextlib.suppress(OSError):  # its death is reported by who needs it next
            self._channel.send({"kind": "preload", "modules": modules})

    def wait_fds(self, world: Processes) -> list[int]:
        """Return the nursery's channel: it tells of every end."""
        return [self._channel.fileno()] if not self._channel.closed else []

    def update(self, world: Processes) -> None:
        """Read what the nursery has to tell."""
        for message in self._channel.receive_ready():
            self._take(message)
        if self._channel.closed:
            # Without the nursery nobody learns how its ranks ended; they are killed, and say so.
            for place in range(len(world.pids)):
                world.exits.setdefault(place, -signal.SIGKILL)
            kill(world)

    def bury(self, world: Processes, timeout_s: float) -> None:
        """Wait until the nursery has reaped the world and killed what it left behind."""
        deadline = clock.now() + timeout_s
        if not world.groups:
            return
        (group,) = world.groups
        while group not in self._buried and not self._channel.closed:
            if clock.now() > deadline:
                raise HarnessError(
                    f"the ranks (process group {group}) were killed, but did not end in "
                    f"{timeout_s:g} s: look for processes in state D, waiting for a disk"
                )
            wait_readable([self._channel], 0.1)
            self.update(world)
        world.groups.clear()
        self._exits.pop(group, None)
        self._buried.discard(group)

    def close(self) -> None:
        """End the nursery: at once, also while it still imports torch."""
        self._channel.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _take(self, message: dict[str, Any]) -> None:
        if message["kind"] == "exit":
            exits = self._exits.setdefault(message["group"], {})
            exits[message["place"]] = message["status"]
        elif message["kind"] == "buried":
            self._buried.add(message["group"])
        else:
            self._answers.append(message)

    def _next_answer(self, timeout_s: float, what: str) -> dict[str, Any]:
        deadline = clock.now() + timeout_s
        while not self._answers:
            for message in self._channel.receive_ready():
                self._take(message)
            if self._answers:
                break
            if self._channel.closed:
                raise self._died(what)
            left = deadline - clock.now()
            if left <= 0:
                raise HarnessError(
                    f"the process that forks the ranks has not {what} in {timeout_s:g} s "
                    f"(--shardcheck-timeout).{interpreter.last_output(self._log)}"
                )
            wait_readable([self._channel], left)
        return self._answers.pop(0)

    def _died(self, what: str) -> HarnessError:
        code = self._process.wait(5)
        return HarnessError(
            f"the process that forks the ranks ended with {code} before it {what}."
            f"{interpreter.last_output(self._log)}"
        )
