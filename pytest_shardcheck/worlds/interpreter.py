"""Start a fresh interpreter that becomes a nursery or a spawned rank. Runs in the session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pytest_shardcheck import _compat
from pytest_shardcheck.worlds import channel
from pytest_shardcheck.worlds.channel import Channel
from pytest_shardcheck.worlds.lifeline import Lifeline
from pytest_shardcheck.worlds.orders import Startup

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
# runpy leaves sys.path alone; a script's own folder would put our modules' names on it.
_RUN = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"


def start(
    role: Literal["nursery", "rank"], startup: Startup, lifeline: Lifeline, log: Path, threads: int
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start the interpreter in a session of its own and return it with the channel to it.

    It inherits neither the session's terminal nor its output: whoever reads ``pytest | tail`` must
    not wait for it. What it prints before it is a rank goes to ``log``.
    """
    ours, theirs = channel.pair()
    command = [sys.executable, *_compat.interpreter_flags(), "-c", _RUN, str(_BOOTSTRAP)]
    fds = (theirs.fileno(), lifeline.read_fd)
    with log.open("ab") as output, theirs:
        process = subprocess.Popen(
            [*command, role, *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=startup.directory,
            env=_environment(os.environ, threads),
            pass_fds=fds,
            start_new_session=True,
        )
    ours.send(startup.to_json())
    return process, ours


def last_output(log: Path) -> str:
    """Return the last that interpreters printed before they were ranks, introduced; or nothing."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-40:]
    except OSError:
        return ""
    return "".join(["\nIts last output:", *(f"\n  {line}" for line in lines)]) if lines else ""


def _environment(inherited: Mapping[str, str], threads: int) -> dict[str, str]:
    return {
        # Otherwise a set's order differs between the processes of one session.
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        **inherited,
    }
