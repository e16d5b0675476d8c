"""pytest-rerunfailures: the whole world runs again, in fresh processes."""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_rerunfailures")

FLAKY = """
    import os
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    STARTS = Path(__file__).with_name("starts")
    pytestmark = pytest.mark.world_size(2)

    @pytest.fixture
    def attempt(process_group, world, request):
        fd = os.open(STARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{request.node.originalname} {world.rank} {os.getpid()}\\n".encode())
        os.close(fd)
        dist.barrier()
        lines = [line.split() for line in STARTS.read_text().splitlines()]
        return sum(name == request.node.originalname and int(rank) == world.rank
                   for name, rank, _ in lines)

    def test_flaky_on_one_rank(attempt, world):
        print(f"attempt {attempt} of rank {world.rank}")
        if world.rank == 1:
            assert attempt == 3
        dist.barrier()

    @pytest.mark.flaky(reruns=1)
    def test_dies_once(attempt, world):
        if attempt == 1 and world.rank == 0:
            os._exit(9)
        dist.barrier()

    @pytest.fixture
    def flaky_setup(attempt, world):
        assert attempt == 2 or world.rank == 1
        yield
        dist.barrier()

    def test_flaky_setup(flaky_setup):
        pass

    def test_never_passes(attempt, world):
        assert world.size == attempt + 10

    @pytest.mark.flaky(reruns=2, only_rerun=["OSError"])
    def test_fails_otherwise(attempt):
        raise ValueError("of another kind")

    def test_passes(attempt):
        assert attempt == 1
"""


@pytest.fixture(scope="module", params=[(), ("-n2",)], ids=["serial", "xdist"])
def session(request, run_session):
    if request.param:
        pytest.importorskip("xdist")
    return run_session({"test_flaky.py": FLAKY}, "-rAR", "--reruns=2", *request.param)


def starts(session) -> dict[str, list[tuple[int, int]]]:
    """Return the ranks and processes that ran each test, in the order of their starts."""
    found: dict[str, list[tuple[int, int]]] = {}
    for line in (session.temporary.parent / "starts").read_text().splitlines():
        name, rank, pid = line.split()
        found.setdefault(name, []).append((int(rank), int(pid)))
    return found


def test_results(session):
    # Its own summary repeats the last word of those that ran more than once.
    assert {name: set(words) for name, words in session.results.items()} == {
        "test_flaky_on_one_rank[world2]": {"PASSED"},
        "test_dies_once[world2]": {"PASSED"},
        "test_flaky_setup[world2]": {"PASSED"},
        "test_passes[world2]": {"PASSED"},
        "test_never_passes[world2]": {"FAILED"},
        "test_fails_otherwise[world2]": {"FAILED"},
    }
    assert session.outcomes == {"passed": 4, "failed": 2}
    assert session.processes_left() == []
    assert session.files_left() == []


@pytest.mark.parametrize(
    ("name", "times"),
    [
        ("test_flaky_on_one_rank", 3),
        ("test_dies_once", 2),
        ("test_flaky_setup", 2),
        ("test_never_passes", 3),
        ("test_fails_otherwise", 1),
        ("test_passes", 1),
    ],
)
def test_every_rank_runs_again_in_a_fresh_process(session, name, times):
    runs = starts(session)[name]
    assert sorted(rank for rank, _ in runs) == [0] * times + [1] * times
    assert len({pid for _, pid in runs}) == 2 * times


def test_what_is_shown(session):
    assert session.out.count("RERUN test_flaky.py::test_flaky_on_one_rank[world2]") == 2
    failure = session.failure("test_never_passes[world2]")
    assert failure.count("ranks 0-1 of 2 failed in their call") == 1
    assert "assert 2 == (3 + 10)" in failure, "the last attempt is what failed"
    assert "attempt 3 of rank 0" in session.out
