"""pytest-randomly: it shuffles worlds as other tests, and every rank has the same seed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("pytest_randomly")

SHUFFLED = """
    import random
    from pathlib import Path
    import pytest
    import torch

    HERE = Path(__file__).parent

    def record(name, who):
        with (HERE / f"records-of-{who}").open("a") as file:
            print(name, random.randrange(10**9), int(torch.randint(10**9, ())), file=file)

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


def test_order_and_seeds(run_session):
    def run(seed: int) -> tuple[list[str], str, str]:
        # run_session switches randomly off; naming the plugin switches it on again.
        arguments = ("-p", "randomly", f"--randomly-seed={seed}")
        session = run_session({"test_shuffled.py": SHUFFLED}, *arguments)
        assert session.outcomes == {"passed": 12, "failed": 1}
        assert f"Using --randomly-seed={seed}" in session.out
        assert "ranks 0-1 of 2 failed in their call" in session.failure("test_fails[world2]")
        here = session.temporary.parent
        of_ranks = [(here / f"records-of-{rank}").read_text() for rank in (0, 1)]
        assert of_ranks[0] == of_ranks[1], "ranks must draw the same numbers"
        order = (here / "order").read_text().split()
        return order, of_ranks[0], (here / "records-of-session").read_text()

    first, other = run(1234), run(99)
    order, of_ranks, of_session = first
    assert len(set(order)) == 12
    assert order != sorted(order)
    assert order != other[0]
    # Worlds and plain tests are shuffled among each other, not only within their kind.
    assert not re.fullmatch("w+p+|p+w+", "".join(name[0] for name in order))
    # The seed decides what ranks draw, as it does in plain tests.
    drawn = dict(line.split(maxsplit=1) for line in of_ranks.splitlines())
    drawn_by_others = dict(line.split(maxsplit=1) for line in other[1].splitlines())
    assert drawn != drawn_by_others
    assert run(1234) == first
