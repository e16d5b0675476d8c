"""pytest-asyncio: async world tests work; without it they fail with a message, and never pass."""

from __future__ import annotations

import pytest

ASYNC = """
    import asyncio
    import pytest
    import torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    @pytest.mark.asyncio
    async def test_passes(process_group, world):
        await asyncio.sleep(0)
        value = torch.tensor([float(world.rank + 1)])
        work = dist.all_reduce(value, async_op=True)
        await asyncio.get_running_loop().run_in_executor(None, work.wait)
        assert value.item() == 3

    @pytest.mark.asyncio
    async def test_fails(world):
        await asyncio.sleep(0)
        print(f"printed by {world.rank}")
        assert world.rank == 0

    class TestInAClass:
        @pytest.mark.asyncio
        async def test_method(self, world):
            await asyncio.sleep(0)
            assert world.size == 5
"""
WITH_FIXTURE = """

    import pytest_asyncio

    @pytest_asyncio.fixture
    async def doubled(world):
        await asyncio.sleep(0)
        yield 2 * world.rank
        await asyncio.sleep(0)

    @pytest.mark.asyncio
    async def test_async_fixture(doubled, world):
        assert doubled == 2 * world.rank
"""
FAILING = ("test_fails[world2]", "TestInAClass.test_method[world2]")


@pytest.fixture(scope="module")
def sessions(run_two_sessions):
    pytest.importorskip("pytest_asyncio")
    return run_two_sessions(
        ({"test_async.py": ASYNC + WITH_FIXTURE}, "-rA"),
        ({"test_async.py": ASYNC}, "-rA", "-p", "no:asyncio", "-p", "no:anyio"),
    )


def test_with_it(sessions):
    session, _ = sessions
    assert session.results == {
        "test_passes[world2]": ["PASSED"],
        "test_async_fixture[world2]": ["PASSED"],
        **{name: ["FAILED"] for name in FAILING},
    }
    failure = session.failure("test_fails[world2]")
    assert "rank 1 of 2 failed in its call" in failure
    assert "assert 1 == 0" in failure
    assert "printed by 1" in failure
    assert "assert 2 == 5" in session.failure("TestInAClass.test_method[world2]")


def test_without_it(sessions):
    _, session = sessions
    assert session.results == {name: ["FAILED"] for name in ("test_passes[world2]", *FAILING)}
    failure = session.failure("test_passes[world2]")
    assert "ranks 0-1 of 2 failed in their call" in failure
    assert "async def functions are not natively supported" in failure
