"""Which work is kept, and when it is let go of."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pytest_shardcheck.instruments import settling
from pytest_shardcheck.instruments.settling import Settling, Workers


class Work:
    def is_completed(self):
        return True


@pytest.fixture
def settled():
    return Settling(lambda: False)


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def in_backward(*actions):
    """Run actions in one backward, in their order."""
    value = torch.ones(1, requires_grad=True)
    for action in reversed(actions):
        value = value * 1
        value.register_hook(lambda _, action=action: action())
    value.sum().backward()


def test_work_is_kept_until_it_was_waited_for(settled):
    work = Work()
    settled.issued(work, ["tensors"])
    settled.settle()
    assert settled.pending
    settled.finished(id(work))
    assert not settled.pending
    assert settled.dirty


def test_where_waits_settle_the_tensors_are_held_until_workers_sleep():
    """Or a worker may be the last to let go of them, which the profiler does not see."""
    kept = []
    settled = Settling(lambda: kept.append(bool(settled.pending)))
    settled.issued(None, ["tensors"], key=1)
    settled.finished(1)
    assert kept == []
    settled.issued(None, ["tensors"], key=2)
    settled.at_waits = True
    settled.finished(2)  # that of a functional collective, which no `Work.wait` tells
    assert set(kept) == {True}
    assert not settled.pending


def test_work_of_a_backward_ends_with_it(settled):
    kept = []

    def issue():
        settled.issued(Work(), [])

    def look():
        settled.settle()
        kept.append(bool(settled.pending))

    in_backward(issue, look)
    assert kept == [True]
    settled.settle()
    assert not settled.pending


def test_a_backward_inside_does_not_end_the_outer_ones_work(settled):
    kept = []

    def inside():
        settled.issued(Work(), [])

        def look():
            settled.settle()
            kept.append(bool(settled.pending))

        with torch.enable_grad():
            in_backward(look)

    in_backward(inside)
    assert kept == [True]


def test_a_step_ends_what_nobody_waits_for(settled):
    settled.issued(Work(), [])
    settled.settle()
    assert settled.pending
    settled.step_ended()
    assert not settled.pending


def test_the_wait_is_seen_and_undone(settled, group):
    original = dist.Work.wait
    settled.start()
    try:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        settled.issued(work, [])
        work.wait()
        assert not settled.pending
    finally:
        settled.stop()
    assert dist.Work.wait is original


def test_gloos_workers_are_found_and_sleep(group):
    workers = Workers()
    if not workers.visible:
        pytest.skip("no /proc here: threads are given time instead")
    dist.all_reduce(nn.Parameter(torch.ones(3)).data)
    for _ in range(10_000):
        if workers.asleep() and workers.asleep():
            break
    else:
        pytest.fail("the workers never slept")
    assert workers._stats
    workers.close()


def test_where_threads_can_not_be_looked_at(monkeypatch, tmp_path):
    monkeypatch.setattr(settling, "_TASKS", tmp_path / "absent")
    drained = []
    blind = Settling(lambda: bool(drained.append(1)))
    blind.dirty = True
    blind.settle()
    assert not blind.dirty
    assert len(drained) > 10
