"""pytest-cov: lines and branches that only ranks run are covered, and nobody else's are."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("pytest_cov")

PRODUCT = """
    def by_rank(rank):
        if rank == 0:
            return "zero"
        if rank == 1:
            return "one"
        return "never"

    def by_plain():
        return "plain"

    def before_it_fails():
        raise ValueError("seen all the same")

    def in_teardown():
        return "torn down"

    def in_a_thread():
        return "thread"

    def never():
        return "never"
"""
TESTS = """
    import threading
    import pytest
    import product

    @pytest.fixture
    def torn_down(world):
        yield
        product.in_teardown()

    @pytest.mark.world_size(2)
    def test_world(process_group, world, torn_down):
        assert product.by_rank(world.rank) == ("zero", "one")[world.rank]
        thread = threading.Thread(target=product.in_a_thread)
        thread.start()
        thread.join()

    @pytest.mark.world_size(2)
    def test_fails():
        product.before_it_fails()

    def test_plain():
        assert product.by_plain() == "plain"
"""
# Whoever kills a failed world as soon as it has reported all that it had loses what it measured.
SLOW_TO_SAVE = """
    import time
    import coverage

    save = coverage.Coverage.save

    def late(measurement):
        time.sleep(0.5)
        save(measurement)

    coverage.Coverage.save = late
"""
ONLY_IN_RANKS = ("zero", "one", "seen all the same", "torn down", "thread")


WAYS = {
    "fork": ["--cov-branch"],
    "spawn": ["--shardcheck-start=spawn"],
    "xdist": ["-n2", "--cov-branch"],
}


@pytest.mark.parametrize("ways", [("fork", "spawn"), ("xdist",)], ids="-".join)
def test_what_ranks_run_is_covered(run_two_sessions, ways):
    if "xdist" in ways:
        pytest.importorskip("xdist")
    files = {"product.py": PRODUCT, "test_product.py": TESTS, "conftest.py": SLOW_TO_SAVE}
    arguments = ["--cov=product", "--cov-report=json", "--cov-report=term"]
    sessions = run_two_sessions(*((files, *arguments, *WAYS[way]) for way in ways))
    for way, session in zip(ways, sessions, strict=True):
        assert_covered(session, branch="--cov-branch" in WAYS[way])


def assert_covered(session, *, branch: bool) -> None:
    assert session.outcomes == {"passed": 2, "failed": 1}, session.out
    root = session.temporary.parent
    measured = json.loads((root / "coverage.json").read_text())
    assert list(measured["files"]) == ["product.py"]
    file = measured["files"]["product.py"]
    lines = (root / "product.py").read_text().splitlines()
    executed = "\n".join(lines[number - 1] for number in file["executed_lines"])
    missing = [lines[number - 1].strip() for number in file["missing_lines"]]
    for text in (*ONLY_IN_RANKS, "plain"):
        assert f'"{text}"' in executed
    assert missing == ['return "never"', 'return "never"']
    assert measured["meta"]["branch_coverage"] is branch
    if branch:
        taken = [lines[start - 1].strip() for start, _ in file["executed_branches"]]
        assert taken.count("if rank == 0:") == 2
        assert taken.count("if rank == 1:") == 1, "no rank has gone past it"
    # The data of the ranks was combined; none of their files is left beside it.
    assert [path.name for path in root.glob(".coverage*")] == [".coverage"]
    assert "CoverageWarning" not in session.out
    assert "coverage: platform" in session.out
