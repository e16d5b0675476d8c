"""pytest-xdist: the same results as without it, over all workers no more ranks than allowed."""

from __future__ import annotations

import pytest

pytest.importorskip("xdist")

# Every rank writes when it starts and ends. Where the bound is looked at, the first worlds go on
# until worlds of two workers have been seen at once: workers that take turns would prove nothing.
RECORDED = """
    import os, time
    from pathlib import Path
    import pytest

    RECORDS = Path(__file__).with_name("records")
    MEET = "TEST_MEET" in os.environ

    def write(*words):
        fd = os.open(RECORDS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
        os.close(fd)

    def have_met():
        running = set()
        for line in RECORDS.read_text().splitlines():
            what, worker, *_ = line.split()
            (running.add if what == "start" else running.discard)(worker)
            if len(running) > 1:
                return True
        return False

    @pytest.fixture
    def recorded(world, request):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
        write("start", worker, request.node.name, world.rank)
        deadline = time.monotonic() + 20
        while MEET and not have_met() and time.monotonic() < deadline:
            time.sleep(0.01)
        if MEET:
            time.sleep(0.3)  # so that a third world is seen, were it let in
        yield worker
        write("end", worker, request.node.name, world.rank)
"""

OUTCOMES = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.xdist_group("one")
    @pytest.mark.world_size(1, 2)
    @pytest.mark.parametrize("number", [5, 6])
    def test_sizes(process_group, recorded, world, number):
        value = torch.tensor([number])
        dist.all_reduce(value)
        assert value.item() == number * world.size

    @pytest.mark.world_size(mesh={"dp": 2, "tp": 1})
    def test_mesh(device_mesh, recorded):
        assert device_mesh.mesh_dim_names == ("dp", "tp")

    @pytest.mark.world_size(2)
    def test_one_fails(world):
        print(f"printed by {world.rank}")
        assert world.rank == 0

    @pytest.mark.world_size(2)
    def test_one_dies(world):
        if world.rank == 1:
            os._exit(7)

    @pytest.mark.world_size(2)
    @pytest.mark.xfail(strict=True)
    def test_xfails(world):
        assert world.size == 3

    @pytest.mark.world_size(2)
    def test_skips(world):
        pytest.skip("no need")

    @pytest.mark.world_size(2)
    def test_paths_and_fixtures(recorded, world, tmp_path, worker_id, record_property):
        assert worker_id == {"alone": "master"}.get(recorded, recorded)
        assert not list(tmp_path.glob(f"rank{world.rank}"))
        (tmp_path / f"rank{world.rank}").touch()
        record_property("worker", worker_id)

    @pytest.mark.parametrize("number", range(4))
    def test_plain(number):
        assert "RANK" not in os.environ
"""

FILES = {"conftest.py": RECORDED, "test_one.py": OUTCOMES, "test_two.py": OUTCOMES}


@pytest.fixture(scope="module")
def serial(run_session):
    return run_session(FILES, "-rA")


def records(session) -> list[list[str]]:
    text = (session.temporary.parent / "records").read_text()
    return [line.split() for line in text.splitlines()]


def most_at_once(session) -> int:
    now = most = 0
    for what, *_ in records(session):
        now += {"start": 1, "end": -1}[what]
        most = max(most, now)
    assert now == 0, "a rank did not end"
    return most


def test_results_without_xdist(serial):
    # What the sessions below are compared with: two files of it.
    assert serial.outcomes == {"passed": 2 * 10, "failed": 2 * 2, "skipped": 2, "xfailed": 2}


# This suite itself runs by file.
@pytest.mark.parametrize(("dist", "workers"), [("load", 4), ("loadgroup", 2), ("worksteal", 2)])
def test_same_results(run_session, serial, dist, workers, monkeypatch):
    arguments = ["-rA", f"-n{workers}", f"--dist={dist}"]
    bounded = workers == 4
    if bounded:
        monkeypatch.setenv("TEST_MEET", "1")
        arguments.append("--shardcheck-max-ranks=4")
    session = run_session(FILES, *arguments)
    # loadgroup writes the group behind the id, where it works at all.
    results = {name.removesuffix("@one"): words for name, words in session.results.items()}
    assert {k: sorted(v) for k, v in results.items()} == {
        k: sorted(v) for k, v in serial.results.items()
    }
    assert session.outcomes == serial.outcomes
    failure = session.failure("test_one_fails[world2]")
    assert "rank 1 of 2 failed in its call" in failure
    assert "Captured stdout call (rank 1)" in failure
    assert "printed by 1" in failure
    assert "rank 1 of 2 died in its call" in session.failure("test_one_dies[world2]")
    assert session.processes_left() == []
    assert session.files_left() == []
    workers_of = {name: set() for _, _, name, _ in records(session)}
    for _, worker, name, _ in records(session):
        workers_of[name].add(worker)
    used = set.union(*workers_of.values())
    assert used <= {f"gw{number}" for number in range(workers)}
    if bounded:
        # More workers than fit: two worlds of two ranks ran at once, and never a third.
        assert len(used) > 1
        assert 2 < most_at_once(session) <= 4


GROUPED = """
    import pytest

    @pytest.mark.xdist_group("one")
    @pytest.mark.parametrize("number", range(8))
    def test_grouped(number, worker_id):
        print(f"grouped {number} ran in {worker_id}")
"""


def test_grouping_is_xdists_own(run_session, pytester: pytest.Pytester):
    # xdist 3.8 renames an item through an attribute that pytest 9.2 reads no more, so that no
    # group is kept together, with us or without: our worlds are neither better nor worse off.
    def ids(*args: str) -> list[str]:
        session = run_session({"test_it.py": GROUPED}, "-v", "-n2", "--dist=loadgroup", *args)
        assert session.outcomes == {"passed": 8}
        return sorted(line.split("::")[1] for line in session.out.splitlines() if "PASSED" in line)

    assert ids() == ids("-p", "no:shardcheck")


BESIDE_AN_ERROR = """
    import os
    import pytest

    @pytest.mark.world_size(3)
    def test_too_large(world):
        pass

    @pytest.mark.world_size(2)
    def test_in_a_world():
        assert "RANK" in os.environ

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", [1, 2])
    def test_fails_in_a_world(number):
        assert "RANK" not in os.environ
"""


def test_a_larger_world_is_an_error_and_no_other_runs_without_one(run_session):
    # xdist's workers run what they could collect, also beside collection errors.
    session = run_session({"test_it.py": BESIDE_AN_ERROR}, "-rA", "-n2", "--shardcheck-max-ranks=2")
    assert session.results.get("test_too_large[world3]") == ["ERROR"]
    assert session.out.count("at most 2 may run at once. Raise --shardcheck-max-ranks") == 1
    assert session.returncode != 0
    # Either they run in their world, or not at all.
    in_world = session.results.get("test_in_a_world[world2]", ["PASSED"])
    failing = session.results.get("test_fails_in_a_world[world2-1]", ["FAILED"])
    assert (in_world, failing) == (["PASSED"], ["FAILED"])
    assert "ranks 0-1 of 2 failed" in session.out or "failed" not in session.outcomes


def test_the_same_error_without_xdist(run_session):
    session = run_session({"test_it.py": BESIDE_AN_ERROR}, "-rA", "--shardcheck-max-ranks=2")
    assert session.outcomes == {"error": 1}
    assert "at most 2 may run at once. Raise --shardcheck-max-ranks" in session.out


def test_what_no_worker_could_send_on_is_still_reported(run_session):
    source = """
        import pytest, warnings

        @pytest.mark.world_size(2)
        def test_surrogate():
            warnings.warn("odd \\ud800")
            raise ValueError("lone \\ud800 surrogate")

        @pytest.mark.world_size(2)
        def test_after():
            pass
    """
    session = run_session({"test_it.py": source}, "-n2", "-rA")
    assert session.outcomes == {"failed": 1, "passed": 1}
    assert "ValueError: lone ? surrogate" in session.out
