"""pytest-timeout: it ends a world that hangs, whichever way it has; nothing is left of it."""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_timeout")

HANGING = """
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    @pytest.mark.timeout(1)
    def test_hangs(process_group, world):
        print(f"printed by {world.rank}")
        if world.rank == 0:
            dist.barrier()

    @pytest.fixture
    def never_ready(process_group, world):
        if world.rank == 1:
            dist.barrier()

    @pytest.mark.timeout(1)
    def test_hangs_in_setup(never_ready):
        pass

    @pytest.mark.timeout(60)
    def test_in_time(process_group):
        dist.barrier()

    @pytest.mark.world_size(2, timeout=1)
    @pytest.mark.timeout(60)
    def test_our_limit_comes_first(process_group, world):
        if world.rank == 0:
            dist.barrier()

    def test_the_next_passes(process_group):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def sessions(run_two_sessions):
    files = {"test_hanging.py": HANGING}
    return run_two_sessions(
        *((files, "-rA", f"--timeout-method={method}") for method in ("signal", "thread"))
    )


@pytest.fixture
def session(sessions):
    return sessions[0]


def test_the_session_goes_on(session):
    assert session.results == {
        "test_hangs[world2]": ["FAILED"],
        "test_hangs_in_setup[world2]": ["ERROR"],
        "test_in_time[world2]": ["PASSED"],
        "test_our_limit_comes_first[world2]": ["FAILED"],
        "test_the_next_passes[world2]": ["PASSED"],
    }
    assert session.processes_left() == []
    assert session.files_left() == []


def test_its_limit_shows_the_ranks_and_not_our_frames(session):
    failure = session.failure("test_hangs[world2]")
    assert "Timeout (>1.0s) from pytest-timeout" in failure
    # What helps is where the ranks were, what they said and who is behind.
    assert "in test_hangs" in failure
    assert "rank 0 waits in barrier #1; rank 1 is 1 behind." in failure
    assert "printed by 1" in failure
    assert "pytest_shardcheck/worlds/channel.py" not in failure


def test_our_limit_is_told_as_without_it(session):
    failure = session.failure("test_our_limit_comes_first[world2]")
    assert "rank 0 of 2 did not end its call" in failure
    assert "still running after 1 s" in failure
    assert "from pytest-timeout" not in failure


def test_the_thread_method_ends_the_session_and_every_process(sessions):
    # It ends the whole session by os._exit, where nobody of ours is asked.
    session = sessions[1]
    assert session.returncode == 1
    assert "Timeout" in session.out
    assert "Stack of MainThread" in session.out
    assert "passed" not in session.out
    assert session.processes_left() == []
    assert session.files_left() == []
