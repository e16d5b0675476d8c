"""Asking whether work is completed never waits for the worker that completes it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist


# pybind asks with the interpreter's lock held. Under a profile the work's end restores the hooks on
# saved tensors of the thread that issued it, with its own lock held, and wants the interpreter's.
@pytest.mark.world_size(2, timeout=60)
@pytest.mark.max_memory(allocated="1 MB")
@pytest.mark.collectives(all_reduce=300)
def test_polling_under_a_profile(process_group, shardcheck):
    with shardcheck.measure():
        for _ in range(300):
            work = dist.all_reduce(torch.ones(10), async_op=True)
            while not work.is_completed():
                pass
            work.wait()


def test_hooks_come_back_in_their_order():
    from pytest_shardcheck.instruments._torch_private import hooks_set_aside, top_hooks

    names = []

    def pack(name):
        return lambda tensor: names.append(name) or tensor

    def unpack(tensor):
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(pack("outer"), unpack):
        with hooks(pack("inner"), unpack):
            with hooks_set_aside():
                assert top_hooks() is None
                torch.ones(1, requires_grad=True).exp()
            torch.ones(1, requires_grad=True).exp()
        torch.ones(1, requires_grad=True).exp()
    assert names == ["inner", "outer"]
