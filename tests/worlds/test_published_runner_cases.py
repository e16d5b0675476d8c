"""What the suites and the issues of other multi-rank test runners show, re-expressed."""

from __future__ import annotations

import pytest

WORLDS = """
    import atexit, os, signal, sys, threading, time, warnings
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def test_all_ranks_fail_alike():
        raise ValueError("the same everywhere")

    def test_all_ranks_fail_differently(world):
        pytest.fail(f"mine is {world.rank}")

    @pytest.mark.parametrize("failing", [0, 1])
    def test_one_rank_fails(world, failing):
        assert world.rank != failing

    def test_one_rank_leaves_with_127(world):
        if world.rank == 1:
            os._exit(127)

    def test_all_ranks_leave_with_127(world):
        os._exit(127)

    @pytest.mark.parametrize("code", [0, 1])
    def test_one_rank_exits(process_group, world, code):
        if world.rank == 1:
            sys.exit(code)
        dist.barrier()

    def test_one_rank_is_killed_by_sigint(world):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if world.rank == 1:
            signal.raise_signal(signal.SIGINT)

    @pytest.mark.world_size(2, timeout=2)
    def test_a_lone_barrier(process_group, world):
        if world.rank == 0:
            dist.barrier()

    @pytest.mark.world_size(2, timeout=2)
    def test_a_long_sleep():
        time.sleep(600)

    @pytest.mark.world_size(2, timeout=60)
    def test_one_raises_and_the_others_wait(process_group, world):
        if world.rank == 1:
            raise ValueError("boom")
        dist.barrier()

    def test_raises_on_one_rank(process_group, world):
        if world.rank == 1:
            with pytest.raises(ValueError):
                raise ValueError("boom")
        dist.barrier()

    def test_a_helper_asserts(world):
        from helper import check
        check(3)

    def test_warnings(world):
        warnings.warn("the same in each")
        warnings.warn(f"one of {world.rank}")

    @pytest.mark.world_size(4)
    def test_the_group_is_made_three_times(world):
        for _ in range(3):
            dist.init_process_group("gloo")
            value = torch.ones(1)
            dist.all_reduce(value)
            assert value.item() == 4
            dist.destroy_process_group()

    @pytest.mark.world_size(2, timeout=20)
    def test_nothing_keeps_a_rank_at_its_exit(process_group):
        atexit.register(time.sleep, 600)
        threading.Thread(target=time.sleep, args=(600,)).start()
        dist.barrier()
"""
PASSING = """
    import unittest
    import pytest
    import torch
    import torch.distributed as dist

    def add_up(size):
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == size

    @pytest.mark.world_size(1, 2, 3)
    def test_sizes(process_group, world):
        add_up(world.size)

    class TestClass:
        @pytest.mark.world_size(2)
        def test_method(self, process_group):
            add_up(2)

    class TestCase(unittest.TestCase):
        @pytest.mark.world_size(2)
        def test_unittest(self):
            dist.init_process_group("gloo")
            add_up(2)
"""
HELPER = """
    def check(value):
        assert value == 5
"""
CONFTEST = """
    import pytest

    pytest.register_assert_rewrite("helper")
"""


@pytest.fixture(scope="module")
def session(run_session):
    """One session: the failing worlds first, then the passing ones in folders with one name."""
    return run_session(
        {
            "a/test_same.py": WORLDS,
            "b-no-package/test_same.py": PASSING,
            "c/helper.py": HELPER,
            "conftest.py": CONFTEST,
        },
        "-rA",
        "--import-mode=importlib",
        "-o",
        "pythonpath=c",
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("all_ranks_fail_alike", ["ranks 0-1 of 2 failed in their call", "the same everywhere"]),
        (
            "all_ranks_fail_differently",
            # Whichever was first leads; the other follows.
            [" of 2 failed in its call", "mine is 0", "mine is 1"],
        ),
        ("one_rank_fails[world2-0]", ["rank 0 of 2 failed in its call", "assert 0 != 0"]),
        ("one_rank_fails[world2-1]", ["rank 1 of 2 failed in its call", "assert 1 != 1"]),
        ("one_rank_leaves_with_127", ["rank 1 of 2 died in its call", "exit code 127"]),
        ("all_ranks_leave_with_127", ["ranks 0-1 of 2 died in their call", "exit code 127"]),
        ("one_rank_exits[world2-0]", ["rank 1 of 2 failed in its call", "SystemExit: 0"]),
        ("one_rank_exits[world2-1]", ["rank 1 of 2 failed in its call", "SystemExit: 1"]),
        ("one_rank_is_killed_by_sigint", ["rank 1 of 2 died in its call", "killed by SIGINT"]),
        (
            "a_lone_barrier",
            [
                "rank 0 of 2 did not end its call",
                "still running after 2 s",
                "in test_a_lone_barrier",
                "rank 0 waits in barrier #1; rank 1 is 1 behind.",
            ],
        ),
        ("a_long_sleep", ["did not end", "still running after 2 s", "in test_a_long_sleep"]),
        (
            "one_raises_and_the_others_wait",
            ["rank 1 of 2 failed in its call", "ValueError: boom", "rank 0 was stopped"],
        ),
        ("a_helper_asserts", ["ranks 0-1 of 2 failed in their call", "assert 3 == 5"]),
    ],
)
def test_a_failure_names_its_rank_and_its_reason(session, name, says):
    name = f"test_{name}" if name.endswith("]") else f"test_{name}[world2]"
    text = session.failure(name)
    for part in says:
        assert part in text
    assert session.results[name] == ["FAILED"]


@pytest.mark.parametrize(
    "name",
    [
        "test_raises_on_one_rank[world2]",
        "test_warnings[world2]",
        "test_the_group_is_made_three_times[world4]",
        "test_nothing_keeps_a_rank_at_its_exit[world2]",
        "test_sizes[world1]",
        "test_sizes[world2]",
        "test_sizes[world3]",
        "TestClass.test_method[world2]",
        "TestCase.test_unittest[world2]",
    ],
)
def test_what_passes_elsewhere_or_should_have(session, name):
    assert session.results.get(name) == ["PASSED"], session.out[-3000:]


def test_warnings_come_once_with_their_ranks(session):
    _, _, summary = session.out.partition("warnings summary")
    for text in ("the same in each (ranks 0-1)", "one of 0 (rank 0)", "one of 1 (rank 1)"):
        assert summary.count(text) == 1
    assert "the same in each (rank 0)" not in summary


def test_nothing_is_left(session):
    assert session.outcomes == {"failed": 13, "passed": 9}
    assert session.processes_left() == []
    assert session.files_left() == []


STOPS = """
    import os, signal
    import pytest
    import torch.distributed as dist

    @pytest.fixture
    def stops_in_setup(process_group, world):
        if world.rank == 1:
            pytest.exit("enough in setup", returncode=9)
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_exit(process_group, world):
        if world.rank == 1:
            pytest.exit("enough", returncode=7)
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_setup(stops_in_setup):
        pass

    @pytest.mark.world_size(2)
    def test_interrupt(process_group, world):
        if world.rank == 1:
            raise KeyboardInterrupt
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_signal(process_group, world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_last():
        pass
"""


@pytest.mark.parametrize(
    ("name", "returncode", "says"),
    [
        ("exit", 7, "Exit: enough (rank 1)"),
        ("setup", 9, "Exit: enough in setup (rank 1)"),
        ("interrupt", pytest.ExitCode.INTERRUPTED, "KeyboardInterrupt"),
        ("signal", pytest.ExitCode.INTERRUPTED, "KeyboardInterrupt"),
    ],
)
def test_a_rank_can_stop_the_session(run_session, name, returncode, says):
    session = run_session({"test_stops.py": STOPS}, "-v", "-k", f"{name} or last")
    assert session.returncode == returncode
    assert f"!!! _pytest.outcomes.{says} !!!" in session.out or f"!!! {says} !!!" in session.out
    assert "::test_last" not in session.out
    assert session.processes_left() == []
    assert session.files_left() == []


LIVE = """
    import os, subprocess
    import pytest

    @pytest.mark.world_size(2)
    def test_live(world):
        print(f"hello from {world.rank}")
        os.write(2, b"from C\\n")
        subprocess.run(["echo", "from a child"])
        print("an unfinished line", end="")
"""


def test_uncaptured_output_streams_with_its_rank(run_session):
    session = run_session({"test_live.py": LIVE}, "-s")
    for rank in (0, 1):
        for text in (f"hello from {rank}", "from C", "from a child", "an unfinished line"):
            # The first line may follow pytest's own progress, as without us.
            assert session.out.count(f"[rank {rank}] {text}\n") == 1, session.out
    assert session.outcomes == {"passed": 1}
