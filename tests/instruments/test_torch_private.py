"""Each private interface of torch that the instruments read, so that its end fails here, loudly."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode

from pytest_shardcheck.instruments import _torch_private as private


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class Seen(TorchDispatchMode):
    """Keep what `see` returns for each operator."""

    def __init__(self, see):
        super().__init__()
        self.see = see
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.seen.append((str(func), self.see(result)))
        return result


def test_a_storages_object_lives_as_long_as_the_storage():
    tensor = torch.ones(3)
    key = id(tensor.untyped_storage())
    [torch.ones(3).untyped_storage() for _ in range(10)]
    assert id(tensor.untyped_storage()) == key
    assert private.storage_key(tensor.untyped_storage()) == tensor.untyped_storage()._cdata


def test_autograd_tells_its_run_and_node():
    weight = torch.ones(3, requires_grad=True)
    with Seen(lambda _: (private.graph_task(), private.current_node())) as mode:
        before = private.forward_sequence_number()
        total = (weight * 2).sum()
        assert private.forward_sequence_number() == before + 2
        total.backward()
    tasks = [task for _, (task, _) in mode.seen]
    assert -1 in tasks
    assert max(tasks) >= 0
    nodes = {type(node).__name__: node for _, (_, node) in mode.seen if node is not None}
    assert private.sequence_number(nodes["MulBackward0"]) == before
    assert private.sequence_number(nodes["AccumulateGrad"]) == private.ACCUMULATES
    assert private.graph_task() == -1


def test_the_work_of_a_dispatched_call_is_the_users(group):
    with Seen(lambda result: list(private.works_in(result))) as mode:
        work = dist.all_reduce(torch.ones(3), async_op=True)
    [seen] = [works for name, works in mode.seen if name.startswith("c10d.allreduce_")]
    assert seen[0] is work
    assert isinstance(work, private.work_class())
    assert "wait" in vars(private.work_class())
    work.wait()


def test_functions_are_kept_from_the_compiler_without_loading_it():
    script = """
import sys, torch
from pytest_shardcheck.instruments._torch_private import keep_from_compiler
def function(x): return x + 1
keep_from_compiler(function)
assert "torch._dynamo" not in sys.modules
from torch._dynamo.testing import CompileCounter
counter = CompileCounter()
assert torch.compile(lambda x: x * 2, backend=counter)(torch.ones(1)).item() == 2
assert counter.frame_count == 1
assert torch.compile(function, backend=counter)(torch.ones(1)).item() == 2
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=200)


def test_fsdp2_keeps_unsharded_parameters_apart(group):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(4, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    assert [p.shape for p in private.hidden_params(model)][:1] == [(4, 4)]
    model(torch.ones(2, 4))
    unsharded = {tensor.numel() for tensor in private.unsharded_params(model)}
    assert {16, 4} <= unsharded


def test_the_innermost_dispatch_mode_is_the_one_that_was_entered_last():
    assert private.innermost_dispatch_mode() is None
    with Seen(lambda *_: None) as outer:
        with Seen(lambda *_: None) as inner:
            assert private.innermost_dispatch_mode() is inner
        assert private.innermost_dispatch_mode() is outer


def test_a_fake_tensor_runs_an_operator_to_tell_its_device():
    with FakeTensorMode() as mode:
        tensor = torch.empty(1)
    with Seen(lambda _: None) as seen:
        assert not tensor.is_meta
        assert tensor.device == private.device_told(tensor) == torch.device("cpu")
    assert [name for name, _ in seen.seen] == [str(private.ASKS_DEVICE)]
    with in_kernel_invocation_manager(mode):
        assert tensor.device == private.device_told(tensor) == torch.device("meta")


def test_dtensor_enters_the_fake_mode_of_a_world_once_more(group):
    class World(private.WorldMode):
        pass

    mesh = init_device_mesh("cpu", (1,))

    class SeenInside(Seen):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if DTensor in types:
                return NotImplemented
            return super().__torch_dispatch__(func, types, args, kwargs)

    def see(result):
        return type(result) is FakeTensor and private.is_only_inferred(result)

    with SeenInside(see) as real:
        weight = distribute_tensor(torch.randn(3, 5), mesh, [Shard(0)])
        weight * weight
    with World(), SeenInside(see) as simulated:
        weight = distribute_tensor(torch.randn(3, 7), mesh, [Shard(0)])
        weight * weight
    for mode in (real, simulated):
        inferred = [yes for name, yes in mode.seen if name == "aten.mul.Tensor"]
        assert inferred == [True, False]
