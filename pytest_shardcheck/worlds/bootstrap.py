"""Turn a fresh interpreter into a nursery or a spawned rank; run by path, never imported.

Importing ``pytest_shardcheck`` here would come before pytest's assertion rewriting is in place, so
this file reads its first message with the standard library alone and imports our package only after
pytest has loaded it as a plugin.

Usage: ``python bootstrap.py ROLE CHANNEL_FD LIFELINE_FD`` with ROLE ``nursery`` or ``rank``.
"""

from __future__ import annotations

import gc
import json
import socket
import struct
import sys
import warnings
from collections.abc import Callable
from typing import Any


def first_message(fd: int) -> dict[str, Any]:
    """Read one message of ``worlds.channel`` and leave the socket open."""
    with socket.socket(fileno=fd) as sock:
        try:
            (length,) = struct.unpack("<I", exactly(sock, 4))
            message: dict[str, Any] = json.loads(exactly(sock, length))
            return message
        finally:
            sock.detach()


def exactly(sock: socket.socket, count: int) -> bytes:
    """Read ``count`` bytes; end the process where the session has left."""
    data = bytearray()
    while len(data) < count:
        chunk = sock.recv(count - len(data))
        if not chunk:
            sys.exit(0)
        data += chunk
    return bytes(data)


class ThreadsForRanksOnly:
    """Stand in for ``torch.set_num_threads``, and do nothing until ``allowed``.

    A conftest or test module that sets more threads, and computes when it is imported, would start
    OpenMP's: they are not there after a fork, and a rank's parallel operations would wait for them.
    """

    allowed = False

    def __init__(self, original: Callable[[int], None]) -> None:
        """Stand in for ``original``."""
        self.original = original

    def __call__(self, nthreads: int) -> None:
        """Set the number of threads, or leave it."""
        if self.allowed:
            self.original(nthreads)


def main() -> None:
    """Import torch, load the session's pytest configuration, hand over to ``worlds``."""
    role, channel_fd, lifeline_fd = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    startup = first_message(channel_fd)
    sys.path[:] = startup["sys_path"]
    sys.argv[:] = startup["argv"]
    # The nursery collects and freezes everything once, before it forks.
    gc.disable()
    with warnings.catch_warnings():
        # What torch says when it is imported is not a warning of any test.
        warnings.simplefilter("ignore")
        import torch
        import torch.distributed

    gc.enable()
    torch.set_num_threads(1)
    if role == "nursery":
        torch.set_num_threads = ThreadsForRanksOnly(torch.set_num_threads)

    from _pytest.config import _prepareconfig  # what pytest.main() and xdist's workers call

    config = _prepareconfig(list(startup["args"]), list(startup["plugins"]) or None)

    from pytest_shardcheck.worlds import child

    child.main(role, config, startup, channel_fd, lifeline_fd)


main()
