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

    RECORDS = Path(__file__).with_name("records")

    def draw():
        return f"{random.randrange(10**9)} {int(torch.randint(10**9, ()))}"

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("number", range(6))
    def test_world(world, shardcheck, number):
        drawn = shardcheck.gather(draw())
        assert drawn[0] == drawn[1]
        if world.rank == 0:
            with RECORDS.open("a") as file:
                print(f"test_world-{number}", drawn[0], file=file)

    @pytest.mark.parametrize("number", range(6))
    def test_plain(number):
        with RECORDS.open("a") as file:
            print(f"test_plain-{number}", draw(), file=file)

    @pytest.mark.world_size(2)
    def test_fails(world):
        assert world.size == 3
"""


def test_order_and_seeds(run_session):
    def run(seed: int) -> list[str]:
        # run_session switches randomly off; naming the plugin switches it on again.
        arguments = ("-p", "randomly", f"--randomly-seed={seed}")
        session = run_session({"test_shuffled.py": SHUFFLED}, *arguments)
        assert session.outcomes == {"passed": 12, "failed": 1}
        assert f"Using --randomly-seed={seed}" in session.out
        assert "ranks 0-1 of 2 failed in their call" in session.failure("test_fails[world2]")
        return (session.temporary.parent / "records").read_text().splitlines()

    first, again, other = run(1234), run(1234), run(99)
    assert first == again
    order = [line.split()[0] for line in first]
    assert order != sorted(order)
    assert order != [line.split()[0] for line in other]
    # Worlds and plain tests are shuffled among each other.
    kinds = "".join(name[5] for name in order)
    assert not re.fullmatch("w+p+|p+w+", kinds)
