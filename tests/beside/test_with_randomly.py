"""pytest-randomly: it shuffles worlds as other tests, and every rank has the same seed."""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_randomly")

SHUFFLED = """
    import random
    from pathlib import Path
    import pytest

    HERE = Path(__file__).parent

    def record(name, who):
        with (HERE / f"records-of-{who}").open("a") as file:
            print(name, random.randrange(10**9), file=file)

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", range(6))
    def test_world(world, number):
        record(f"test_world-{number}", world.rank)
        if world.rank == 0:
            with (HERE / "order").open("a") as file:
                print("w", number, sep="", file=file)

    @pytest.mark.parametrize("number", range(6))
    def test_plain(number):
        record(f"test_plain-{number}", "session")
        with (HERE / "order").open("a") as file:
            print("p", number, sep="", file=file)

    @pytest.mark.world_size(2)
    def test_fails(world):
        assert world.size == 3
"""


def test_order_and_seeds(run_two_sessions):
    def records(session, seed: int) -> tuple[list[str], str, str]:
        assert session.outcomes == {"passed": 12, "failed": 1}
        assert f"Using --randomly-seed={seed}" in session.out
        assert "ranks 0-1 of 2 failed in their call" in session.failure("test_fails[world2]")
        here = session.temporary.parent
        of_ranks = [(here / f"records-of-{rank}").read_text() for rank in (0, 1)]
        assert of_ranks[0] == of_ranks[1], "ranks must draw the same numbers"
        order = (here / "order").read_text().split()
        return order, of_ranks[0], (here / "records-of-session").read_text()

    # run_session switches randomly off; naming the plugin switches it on again.
    files = {"test_shuffled.py": SHUFFLED}
    seeds = (1234, 99)
    sessions = run_two_sessions(
        *((files, "-p", "randomly", f"--randomly-seed={seed}") for seed in seeds)
    )
    first, other = map(records, sessions, seeds)
    order, of_ranks, _ = first
    assert len(set(order)) == 12
    assert order != sorted(order)
    assert order != other[0]
    # The seed decides what ranks draw, as it does in plain tests.
    drawn = dict(line.split(maxsplit=1) for line in of_ranks.splitlines())
    drawn_by_others = dict(line.split(maxsplit=1) for line in other[1].splitlines())
    assert drawn != drawn_by_others
