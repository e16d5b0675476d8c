"""FSDP1, FSDP2 and DTensors as one rank of a fake group holds them: sizes are right, values not."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.optim import AdamW
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_shardcheck.instruments import Watched, measure_state


@pytest.fixture
def join():
    def as_rank(rank, size):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        return init_device_mesh("cpu", (size,))

    yield as_rank
    if dist.is_initialized():
        dist.destroy_process_group()


def cpu_state(*things):
    return measure_state(Watched(*things), "cpu").by_device["cpu"]


def step(model, optimizer, batch):
    model(batch).sum().backward()
    optimizer.step()


@pytest.mark.parametrize(("rank", "rows"), [(0, 2), (1, 2), (2, 1), (3, 0)])
def test_fsdp2_counts_the_local_shard_without_its_padding(join, rank, rows):
    model = fully_shard(nn.Linear(5, 5, bias=False), mesh=join(rank, 4))
    optimizer = AdamW(model.parameters())
    step(model, optimizer, torch.randn(2, 5))
    local = model.weight.to_local()
    assert local.numel() == rows * 5
    state = cpu_state(model, optimizer)
    assert (state.params, state.grads, state.optimizer) == (rows * 20, rows * 20, rows * 40 + 4)


def test_fsdp2_holds_shard_and_whole_while_unsharded(join):
    model = fully_shard(nn.Linear(8, 8, bias=False), mesh=join(0, 4))
    optimizer = AdamW(model.parameters())
    assert cpu_state(model).params == 64
    model.unshard()
    assert cpu_state(model).params == 64 + 256
    # Its parameters are now others than the optimizer's, which are no copies all the same.
    assert cpu_state(model, optimizer).optimizer == 0
    model.reshard()
    assert cpu_state(model).params == 64


def test_fsdp2_keeps_whole_gradients_in_fp32_that_are_in_no_grad(join):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = fully_shard(nn.Linear(8, 8, bias=False), mesh=join(0, 4), mp_policy=policy)
    model.set_requires_gradient_sync(False)
    model(torch.randn(2, 8)).sum().backward()
    assert all(param.grad is None for param in model.parameters())
    assert cpu_state(model).grads == 256


def test_fsdp2_resharded_to_a_smaller_group(join):
    mesh = join(0, 4)
    root = nn.Sequential(nn.Linear(8, 8, bias=False))
    fully_shard(root[0], mesh=mesh, reshard_after_forward=2)
    fully_shard(root, mesh=mesh)
    root(torch.randn(2, 8)).sum()
    assert cpu_state(root).params == 64 + 128  # a quarter, and a half for backward


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_fsdp1_counts_the_padded_flat_parameter(join, use_orig_params):
    join(3, 4)
    model = FullyShardedDataParallel(
        nn.Linear(5, 5), device_id="cpu", use_orig_params=use_orig_params
    )
    # 25 + 5 numbers; with original parameters the bias begins at a multiple of 16 B, 28. Padded to
    # 32 or 36, of which the last rank has a quarter.
    size = 4 * (9 if use_orig_params else 8)
    assert cpu_state(model).params == size
    model(torch.randn(2, 5)).sum().backward()
    state = cpu_state(model)
    assert (state.params, state.grads) == (size, size)


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_fsdp1_holds_shard_and_whole_while_unsharded(join, use_orig_params):
    join(0, 4)
    model = FullyShardedDataParallel(
        nn.Linear(8, 8, bias=False), device_id="cpu", use_orig_params=use_orig_params
    )
    with FullyShardedDataParallel.summon_full_params(model):
        assert cpu_state(model).params == 64 + 256
    assert cpu_state(model).params == 64
    loss = model(torch.randn(2, 8)).sum()
    assert cpu_state(model).params == 64 + 256  # the root stays whole until backward
    loss.backward()
    assert cpu_state(model).params == 64


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_fsdp1_keeps_whole_gradients_without_sync(join, use_orig_params):
    join(0, 4)
    model = FullyShardedDataParallel(
        nn.Linear(8, 8, bias=False), device_id="cpu", use_orig_params=use_orig_params
    )
    with model.no_sync():
        model(torch.randn(2, 8)).sum().backward()
    assert cpu_state(model).grads == 256
    model.zero_grad()
    model(torch.randn(2, 8)).sum().backward()
    assert cpu_state(model).grads == 64
    with model.no_sync():
        model(torch.randn(2, 8)).sum().backward()
    assert cpu_state(model).grads == 64 + 256  # the shard is kept beside the whole ones


def test_fsdp1_frees_its_low_precision_shard(join):
    join(0, 4)
    model = FullyShardedDataParallel(
        nn.Linear(8, 8, bias=False),
        device_id="cpu",
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
    )
    model(torch.randn(2, 8)).sum().backward()
    state = cpu_state(model)
    assert (state.params, state.grads) == (64, 64)


def test_hsdp_keeps_gradients_that_are_not_all_reduced(join):
    join(0, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fully_shard(nn.Linear(8, 8, bias=False), mesh=mesh)
    model.set_requires_all_reduce(False)
    model(torch.randn(2, 8)).sum().backward()
    assert model.weight.grad is None
    assert cpu_state(model).grads == 128


def test_tensor_parallelism_and_fsdp2_divide_by_both_axes(join):
    join(0, 4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU())
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    optimizer = AdamW(model.parameters())
    step(model, optimizer, torch.randn(2, 8))
    state = cpu_state(model, optimizer)
    assert (state.params, state.grads, state.optimizer) == (64, 64, 2 * 64 + 4)


def test_a_pipeline_stage_is_its_module(join):
    join(0, 4)
    stage = PipelineStage(nn.Linear(8, 8), 0, 4, torch.device("cpu"))
    assert cpu_state(stage).params == 288


def test_zero1_holds_the_state_of_its_own_parameters(join):
    join(0, 4)
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(4)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    step(model, optimizer, torch.randn(2, 8))
    assert not optimizer.state  # reading this instead would be a wonderful result
    state = cpu_state(model, optimizer)
    assert (state.params, state.grads, state.optimizer) == (1_024, 1_024, 2 * 256 + 4)


def test_fsdp_units_inside_plain_modules_are_found(join):
    mesh = join(0, 4)
    tower = nn.ModuleDict({"a": nn.Linear(8, 8, bias=False), "b": nn.Linear(8, 8, bias=False)})
    fully_shard(tower["a"], mesh=mesh)
    tower["a"].unshard()
    assert cpu_state(tower).params == 64 + 256 + 256


def test_a_dtensor_counts_its_local_shard(join):
    tensor = distribute_tensor(torch.zeros(16, 4), join(1, 4), [Shard(0)])
    assert tensor.numel() == 64
    assert cpu_state(nn.Parameter(tensor)).params == 64
