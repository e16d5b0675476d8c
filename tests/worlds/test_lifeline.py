"""Process groups die with the session, also when they are busy in C."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

import pytest

from pytest_shardcheck.worlds import lifeline

# A session that ties a spinning process group to its life, says its number, and waits.
SESSION = """
import os, signal, sys, time
from pytest_shardcheck.worlds import lifeline
line = lifeline.Lifeline()
inherited = os.dup(line.read_fd)  # a fork closes the session's own ends
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals) - {signal.SIGKILL})
    lifeline.tie_own_group(inherited)
    os.write(write, b"tied")
    sum(range(10**12))  # C code that looks at no signal and no flag
os.read(read, 4)
print(pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def wait_until_dead(pid: int, timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    while is_alive(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="by kernel signal on Linux only")
def test_a_group_that_spins_in_c_dies_with_a_killed_session():
    with subprocess.Popen([sys.executable, "-c", SESSION], stdout=subprocess.PIPE, text=True) as s:
        pid = int(s.stdout.readline())
        assert is_alive(pid)
        s.kill()
        assert wait_until_dead(pid)


@pytest.fixture
def line():
    line = lifeline.Lifeline()
    yield line
    line.close()


def fork_a_group(line: lifeline.Lifeline, run) -> int:
    """Fork a child that leads a group, and runs with a copy of the pipe's read end."""
    inherited = os.dup(line.read_fd)
    pid = os.fork()  # which closes the session's own ends in the child
    if pid == 0:
        try:
            os.setpgid(0, 0)
            run(lifeline.open_line(inherited))
        finally:
            os._exit(1)
    os.close(inherited)
    return pid


def test_closing_the_lifeline_ends_the_group(line):
    def run(own: int) -> None:
        lifeline.aim(own, os.getpid())
        time.sleep(60)

    pid = fork_a_group(line, run)
    pidfd = os.pidfd_open(pid)
    assert select.select([pidfd], [], [], 0.2)[0] == []
    line.close()
    line.close()  # harmless
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    os.close(pidfd)


def test_a_session_that_died_first_is_noticed(line):
    def run(own: int) -> None:
        poller = select.poll()
        poller.register(own, select.POLLHUP)
        poller.poll(30_000)
        lifeline.aim(own, os.getpid())
        time.sleep(60)

    pid = fork_a_group(line, run)
    line.close()
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
