"""What a simulation replaces is there, and comes back."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d

from pytest_shardcheck.instruments import c10d_tap
from pytest_shardcheck.simulation import simulation
from pytest_shardcheck.simulation.patches import replace


class Owner:
    def method(self):
        return 1

    @staticmethod
    def static():
        return 2


class Heir(Owner):
    pass


def test_replaced_and_put_back():
    before = dict(vars(Owner))
    with contextlib.ExitStack() as stack:
        replace(stack, Owner, "method", lambda original: lambda self: original(self) + 10)
        replace(stack, Owner, "static", lambda original: staticmethod(lambda: original() + 10))
        replace(stack, Heir, "method", lambda original: lambda self: original(self) + 100)
        assert (Owner().method(), Owner.static(), Heir().method()) == (11, 12, 111)
    assert dict(vars(Owner)) == before
    assert "method" not in vars(Heir)


def test_a_name_that_torch_has_no_more_is_an_error():
    with contextlib.ExitStack() as stack, pytest.raises(AttributeError):
        replace(stack, Owner, "gone", lambda original: original)


def test_a_simulation_leaves_nothing_behind(tmp_path):
    c10d_tap.install()
    names = [
        (distributed_c10d, "_new_process_group_helper"),
        (distributed_c10d, "_object_to_tensor"),
        (torch.distributed._functional_collectives, "_are_we_tracing"),
        (torch._TorchCompileInductorWrapper, "__call__"),
        (torch.utils, "swap_tensors"),
        (FakeTensor, "numpy"),
        (FakeTensor, "data_ptr"),
        (torch.UntypedStorage, "data_ptr"),
        (torch, "save"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    with simulation(tmp_path, 5, (5,)):
        assert all(getattr(o, n) is not b for (o, n), b in zip(names, before, strict=True))
        assert type(torch.ones(2)) is FakeTensor
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=5, world_size=8)
        try:
            tensor = torch.ones(2)
            work = dist.all_reduce(tensor, async_op=True)
            assert work.is_completed()
            assert work.wait()
            assert work.get_future().value()[0] is tensor
        finally:
            dist.destroy_process_group()
    assert [getattr(owner, name) for owner, name in names] == before
    assert type(torch.ones(2)) is torch.Tensor
