"""pytest-repeat: each repetition is a world of its own."""

from __future__ import annotations

import pytest

pytest.importorskip("pytest_repeat")

REPEATED = """
    import os
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    STARTS = Path(__file__).with_name("starts")

    @pytest.mark.repeat(3)
    @pytest.mark.world_size(1, 2)
    def test_marked(process_group, world):
        fd = os.open(STARTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(fd, f"{world.size} {world.rank} {os.getpid()}\\n".encode())
        os.close(fd)
        dist.barrier()

    @pytest.mark.world_size(2)
    @pytest.mark.repeat(2)
    @pytest.mark.max_memory(params="1 KiB")
    def test_fails_each_time(shardcheck, world):
        assert world.rank == 0

    def test_plain():
        pass
"""


def test_each_repetition_is_a_world(run_session):
    session = run_session({"test_repeated.py": REPEATED}, "-rA", "--count=2")
    text = (session.temporary.parent / "starts").read_text()
    processes = [tuple(map(int, line.split())) for line in text.splitlines()]
    assert sorted(process[:2] for process in processes) == sorted(3 * [(1, 0), (2, 0), (2, 1)])
    assert len({pid for *_, pid in processes}) == 9, "each repetition has fresh processes"
    assert session.outcomes == {"passed": 3 + 3 + 2, "failed": 2}
    assert len(session.results) == 10, "no two share an id"
    marked = [name for name in session.results if name.startswith("test_marked")]
    assert sum("world2" in name for name in marked) == 3
    for name in session.results:
        if name.startswith("test_fails"):
            assert "rank 1 of 2 failed in its call" in session.failure(name)
