"""Every plain way for a world to end: each as written, and the next passes.

Spawned worlds end so too: see the failure matrix.
"""

from __future__ import annotations

import pytest

WORLDS = """
    import os, signal, time
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def test_pass(process_group, world):
        value = torch.tensor([float(world.rank + 1)])
        dist.all_reduce(value)
        assert value.item() == 3

    def test_one_asserts(world):
        print(f"printed by {world.rank}")
        assert world.rank + 2 == 2

    def test_all_assert(world):
        assert world.size == 5

    def test_one_raises_before_a_collective(process_group, world):
        if world.rank == 1:
            raise ValueError("boom")
        dist.barrier()

    def test_all_skip(world):
        pytest.skip("no need")

    def test_one_is_killed(process_group, world):
        if world.rank == 1:
            os.write(2, b"last words")
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    @pytest.mark.world_size(2, timeout=4)
    def test_one_hangs(process_group, world):
        dist.all_reduce(torch.ones(1))
        if world.rank == 0:
            dist.barrier()

    def test_the_next_passes(process_group):
        dist.barrier()
"""

PASSED = ("test_pass[world2]", "test_the_next_passes[world2]")


@pytest.fixture(scope="module")
def session(run_session):
    """One session of all of them; the tests below look at its parts."""
    return run_session({"test_worlds.py": WORLDS}, "-rA")


def test_all_end_as_they_must(session):
    assert session.outcomes == {"passed": 2, "failed": 5, "skipped": 1}
    for name in PASSED:
        assert f"PASSED test_worlds.py::{name}" in session.out
    assert "no need" in session.out


def test_one_failed_assertion_is_shown_rewritten_with_its_ranks_output(session):
    text = session.failure("test_one_asserts[world2]")
    assert "rank 1 of 2 failed in its call" in text
    assert "assert (1 + 2) == 2" in text
    assert "Captured stdout call (rank 1)" in text
    assert "printed by 1" in text


def test_equal_failures_are_folded(session):
    text = session.failure("test_all_assert[world2]")
    assert "ranks 0-1 of 2 failed in their call" in text
    assert text.count("AssertionError: assert 2 == 5") == 1


def test_an_exception_leads_and_its_waiting_peer_is_stopped(session):
    text = session.failure("test_one_raises_before_a_collective[world2]")
    assert "rank 1 of 2 failed in its call" in text
    assert "ValueError: boom" in text
    assert "rank 0 was stopped by pytest-shardcheck in its call" in text


def test_a_killed_rank_is_named_with_its_signal_and_its_last_words(session):
    text = session.failure("test_one_is_killed[world2]")
    assert "rank 1 of 2 died in its call" in text
    assert "killed by SIGKILL (out of memory is likely" in text
    assert "Captured stderr call (rank 1, unreported)" in text
    assert "last words" in text


def test_a_hang_shows_the_stack_and_who_is_behind(session):
    text = session.failure("test_one_hangs[world2]")
    assert "rank 0 of 2 did not end its call" in text
    assert "still running after 4 s" in text
    assert "in test_one_hangs" in text
    assert "rank 0 waits in barrier #2; rank 1 is 1 behind." in text


def test_no_process_and_no_file_is_left(session):
    assert session.processes_left() == []
    assert session.files_left() == []
