"""A session that is interrupted or killed leaves no rank, no nursery and no worker behind."""

from __future__ import annotations

import signal
import time

import pytest

# Each rank tells where it is, starts a grandchild, and then spins in C or waits for its peer.
BUSY = """
    import subprocess, time
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    HERE = Path(__file__).parent

    def arrive(world):
        subprocess.Popen(["sleep", "600"])
        (HERE / f"arrived-{world.rank}").touch()

    def busy(world):
        arrive(world)
        if world.rank == 0:
            sum(range(10**12))  # looks at no signal
        else:
            dist.barrier()      # sleeps in gloo

    @pytest.fixture
    def in_setup(process_group, world, request):
        if request.node.originalname == "test_setup":
            busy(world)
        yield
        if request.node.originalname == "test_teardown":
            busy(world)

    @pytest.mark.world_size(2)
    def test_setup(in_setup):
        pass

    @pytest.mark.world_size(2)
    def test_body(process_group, world):
        busy(world)

    @pytest.mark.world_size(2)
    def test_teardown(in_setup):
        pass
"""


def wait_for(condition, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def start_and_wait(run_session, phase: str, *args: str):
    process, session = run_session.start({"test_busy.py": BUSY}, "-k", phase, *args)
    root = session.temporary.parent
    wait_for(lambda: all((root / f"arrived-{rank}").exists() for rank in (0, 1)))
    return process, session


@pytest.mark.parametrize("phase", ["setup", "body", "teardown"])
def test_kill_9_leaves_no_process_and_nobody_holds_the_output(run_session, phase):
    process, session = start_and_wait(run_session, phase)
    process.kill()
    # Returns at once only when no process of the session has inherited its output.
    process.communicate(timeout=60)
    assert session.processes_left() == []
    assert session.files_left() == []


@pytest.mark.parametrize("phase", ["setup", "body", "teardown"])
def test_ctrl_c_ends_everything_at_once(run_session, phase):
    process, session = start_and_wait(run_session, phase)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED
    assert "KeyboardInterrupt" in out
    assert session.processes_left() == []
    assert session.files_left() == []


def test_ctrl_c_while_the_nursery_starts(run_session):
    process, session = run_session.start({"test_busy.py": BUSY})
    wait_for(lambda: list(session.temporary.glob("shardcheck-*/log")))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert session.processes_left() == []
    assert session.files_left() == []


def test_kill_9_of_a_spawned_world(run_session):
    process, session = start_and_wait(run_session, "body", "--shardcheck-start=spawn")
    process.kill()
    process.communicate(timeout=60)
    assert session.processes_left() == []


@pytest.mark.parametrize("how", ["kill -9", "ctrl-c"])
def test_under_xdist_the_workers_worlds_end_with_the_controller(run_session, how):
    pytest.importorskip("xdist")
    process, session = start_and_wait(run_session, "body", "-n", "2")
    if how == "ctrl-c":
        process.send_signal(signal.SIGINT)
    else:
        process.kill()
    process.communicate(timeout=60)
    assert session.processes_left() == []
    assert session.files_left() == []
