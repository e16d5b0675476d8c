"""Kill ranks when the session dies, however it dies.

A pipe whose write end only the session holds is open in every process that we start. When the
session ends, also by SIGKILL, the kernel closes that end and on Linux signals the process groups
that have asked for it (``O_ASYNC`` with ``F_SETSIG=SIGKILL``): no thread of ours has to run, so
that a rank that spins in C dies too. ``PR_SET_PDEATHSIG`` was rejected: it fires when the forking
*thread* ends. Elsewhere a two-line shell process waits for the same end of file.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

# The shell closes every descriptor but the pipe, or it would hold the session's output open.
_SWEEPER: Final = 'exec >/dev/null 2>&1; while read -r _; do :; done; rm -rf -- "$1"'
_REAPER: Final = 'exec >/dev/null 2>&1; while read -r _; do :; done; kill -9 -"$1"'


class Lifeline:
    """The session's end of the pipe; ``read_fd`` is what children inherit."""

    def __init__(self) -> None:
        """Open the pipe; it ends with the session's process."""
        self.read_fd, self._write_fd = os.pipe()
        # A process that a conftest forked would keep the write end open past the session's death.
        os.register_at_fork(after_in_child=self.close)

    def close(self) -> None:
        """End every process group that was tied to this lifeline; harmless when repeated."""
        for fd in (self._write_fd, self.read_fd):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self.read_fd = -1


def open_line(read_fd: int) -> int:
    """Return an open file description of the pipe of its own, for one process group.

    The owner that a signal goes to belongs to the description. Children that inherit it keep it
    alive, so that it also outlives the process which called ``aim``. Linux only.
    """
    return os.open(f"/proc/self/fd/{read_fd}", os.O_RDONLY | os.O_NONBLOCK)


def aim(line: int, group: int) -> None:
    """Have the kernel kill the process group when the session's end closes. Linux only."""
    if sys.platform == "linux":
        fcntl.fcntl(line, fcntl.F_SETOWN, -group)
        fcntl.fcntl(line, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(line, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        if _session_is_gone(line):
            os.killpg(group, signal.SIGKILL)


def tie_own_group(read_fd: int) -> None:
    """Tie the calling process's group to the session, on any platform."""
    group = os.getpgrp()
    if sys.platform == "linux":
        aim(open_line(read_fd), group)
    else:
        _start_shell(_REAPER, read_fd, str(group))


def sweep_up(read_fd: int, directory: Path) -> subprocess.Popen[bytes]:
    """Have ``directory`` removed when the session's end closes, also when it was killed.

    The signal that ends our groups leaves nobody to do it; a shell of its own group does.
    """
    return _start_shell(_SWEEPER, read_fd, str(directory))


def _start_shell(script: str, read_fd: int, argument: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "pytest-shardcheck", argument],
        stdin=read_fd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _session_is_gone(line: int) -> bool:
    """Tell whether the write end is closed: no signal comes for a death before ``aim``."""
    poller = select.poll()
    poller.register(line, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poller.poll(0))
