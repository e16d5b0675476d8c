"""The processes of one world as the session sees them, and the Protocol of ways to start them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pytest_shardcheck.worlds import channel
from pytest_shardcheck.worlds.channel import Channel
from pytest_shardcheck.worlds.orders import Order


@dataclass
class RankEnds:
    """The session's ends of what connects it to one rank, and the rank's ends to hand over."""

    channel: Channel
    output: int
    their_channel: socket.socket
    their_output: int

    @classmethod
    def make(cls) -> RankEnds:
        """Return new ends: a socket for messages, a pipe for output that is not captured."""
        ours, theirs = channel.pair()
        read, write = os.pipe()
        os.set_blocking(read, False)
        return cls(ours, read, theirs, write)

    def drop_theirs(self) -> None:
        """Close the rank's ends here, so that its death is seen as the end of the conversation."""
        self.their_channel.close()
        os.close(self.their_output)

    def drop_ours(self) -> None:
        """Close the session's ends, where nothing came of the world."""
        self.channel.close()
        os.close(self.output)


@dataclass
class Processes:
    """One world's processes, in the order of the ranks that run: what is known of their ends."""

    log: Path  # what they print before they are ranks
    channels: list[Channel] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    exits: dict[int, int] = field(default_factory=dict)  # place to exit code, or minus the signal
    refused: str | None = None


def kill(world: Processes) -> None:
    """Kill a world by its process groups, DataLoader workers included."""
    for group in world.groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def ended(pid: int) -> int | None:
    """Return a child's exit code, or minus its signal, once it has ended; leave it as a zombie.

    The zombie keeps the number of its process group from being reused while the group is killed.
    """
    result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


class Launcher(Protocol):
    """A way to start worlds."""

    def launch(self, order: Order, listener: socket.socket) -> Processes:
        """Start the ranks of a world; raise HarnessError where that is impossible."""

    def learn(self, modules: list[str]) -> None:
        """Take note of what the ranks of a world had to import of torch."""

    def wait_fds(self, world: Processes) -> list[int]:
        """Return descriptors that become readable when the end of a rank may be known."""

    def update(self, world: Processes) -> None:
        """Note the ranks that have ended since in ``world.exits``; never block."""

    def bury(self, world: Processes, timeout_s: float) -> None:
        """Wait until no process of a world that has ended or was killed is left."""
