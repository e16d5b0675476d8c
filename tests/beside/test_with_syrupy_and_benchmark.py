"""syrupy and pytest-benchmark: plain tests keep all they had; no rank has syrupy's fixture."""

from __future__ import annotations

import json
import re

import pytest

IN_WORLDS = """
    import pytest

    @pytest.mark.world_size(2)
    def test_world_snapshot(snapshot):
        assert 1 == snapshot
"""
OWN = """
    import pytest

    # A user's fixtures of these names are none of theirs.
    @pytest.fixture
    def snapshot(world):
        return world.size

    @pytest.fixture
    def benchmark():
        return len

    @pytest.mark.world_size(2)
    def test_own_fixtures(snapshot, benchmark):
        assert benchmark("ab") == snapshot
"""
BESIDE = """
    import os
    import pytest
    import torch.distributed as dist

    VALUE = os.environ.get("TEST_VALUE", "first")

    def test_plain(snapshot):
        assert VALUE == snapshot

    @pytest.mark.world_size(2)
    def test_world(process_group):
        dist.barrier()

    def test_another(snapshot):
        assert [1, 2] == snapshot

    @pytest.mark.world_size(2)
    def test_fails(world):
        assert world.rank == 0
"""
ONLY_PLAIN = """
    def test_elsewhere(snapshot):
        assert {"of": "another file"} == snapshot
"""


def test_a_snapshot_in_a_world_is_refused_at_collection(run_session):
    pytest.importorskip("syrupy")
    pytest.importorskip("pytest_benchmark")
    session = run_session({"test_s.py": IN_WORLDS, "test_own.py": OWN})
    assert session.outcomes == {"error": 1}
    assert re.search(r"test_s\.py::test_world_snapshot\[world2\]: .*'snapshot'", session.out)
    assert "each rank would" in session.out
    assert "Traceback" not in session.out
    assert not (session.temporary.parent / "__snapshots__").exists()


def test_updating_snapshots_beside_worlds(pytester, monkeypatch):
    pytest.importorskip("syrupy")
    snapshots = pytester.path / "__snapshots__"

    def run(*args: str, passed: int, failed: int = 1) -> str:
        result = pytester.runpytest_subprocess("-p", "no:randomly", *args)
        result.assert_outcomes(passed=passed, failed=failed)
        return result.stdout.str()

    def saved() -> dict[str, str]:
        return {path.name: path.read_text() for path in snapshots.glob("*.ambr")}

    pytester.makepyfile(test_beside=BESIDE, test_plain=ONLY_PLAIN)
    # Written the first time, and nothing is written for a world.
    run("--snapshot-update", passed=4)
    first = saved()
    assert sorted(first) == ["test_beside.ambr", "test_plain.ambr"]
    assert first["test_beside.ambr"].count("# name:") == 2
    assert "test_world" not in "".join(first.values())
    # Updating only worlds, by name, deletes nobody else's.
    run("--snapshot-update", "test_beside.py::test_world", passed=1, failed=0)
    assert saved() == first
    # Another value is taken over; the other snapshots stay.
    monkeypatch.setenv("TEST_VALUE", "second")
    run("--snapshot-update", passed=4)
    assert saved() == {name: text.replace("first", "second") for name, text in first.items()}


TIMED = """
    import pytest
    import torch.distributed as dist

    def test_timed(benchmark):
        assert benchmark(len, "text") == 4

    @pytest.mark.world_size(2)
    def test_world_timed(benchmark):
        calls = []
        benchmark(calls.append, 1)
        print("called once" if len(calls) == 1 else "called often")

    def test_plain():
        pass

    @pytest.mark.world_size(2)
    def test_world(process_group):
        dist.barrier()

    @pytest.mark.world_size(2)
    def test_fails(world):
        assert world.rank == 0
"""

TIMED_TESTS = ("test_timed", "test_world_timed[world2]")
RUN = {
    "--benchmark-json=timed.json": (*TIMED_TESTS, "test_plain", "worlds"),
    "--benchmark-disable": (*TIMED_TESTS, "test_plain", "worlds"),
    "--benchmark-skip": ("test_plain", "worlds"),
    "--benchmark-only": TIMED_TESTS,
}


@pytest.mark.parametrize("options", [list(RUN)[:2], list(RUN)[2:]], ids=" ".join)
def test_benchmarks_beside_worlds(run_two_sessions, options):
    pytest.importorskip("pytest_benchmark")
    files = {"test_timed.py": TIMED}
    short = ("-rA", "--benchmark-max-time=0.01")
    sessions = run_two_sessions(*((files, *short, option) for option in options))
    for option, session in zip(options, sessions, strict=True):
        expected = {name: ["PASSED"] for name in RUN[option] if name != "worlds"}
        if "worlds" in RUN[option]:
            expected |= {"test_world[world2]": ["PASSED"], "test_fails[world2]": ["FAILED"]}
            assert "rank 1 of 2 failed in its call" in session.failure("test_fails[world2]")
        assert session.results == expected
        assert session.outcomes.get("skipped", 0) == 5 - len(expected)
        if "json" in option:
            timed = json.loads((session.temporary.parent / "timed.json").read_text())
            assert [each["name"] for each in timed["benchmarks"]] == list(TIMED_TESTS)
        if option != "--benchmark-skip":
            called = "called once" if option == "--benchmark-disable" else "called often"
            assert called in session.out
        assert session.processes_left() == []
