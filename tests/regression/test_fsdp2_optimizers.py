"""FSDP2 and the optimizer: when it is built, and clipping by the norm of all shards."""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import Net16, net16_batch, train_measured
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD
from wrapped_fsdp import fsdp2_net16

from pytest_shardcheck import collectives, memory

P = 8_192  # Net16


def clipped(model, optimizer, clip):
    optimizer.zero_grad()
    model(net16_batch()).sum().backward()
    clip(model.parameters())
    optimizer.step()


def measured(shardcheck, mesh, clip):
    model = fsdp2_net16(mesh)
    optimizer = SGD(model.parameters(), lr=0.1)
    clipped(model, optimizer, clip)
    with shardcheck.measure(model, optimizer) as reading:
        clipped(model, optimizer, clip)
    return reading


def by_the_norm_of_all(params):
    nn.utils.clip_grad_norm_(params, 1.0)


def by_its_own_shards(params):
    norm = torch.stack([param.grad.to_local().norm() for param in params]).norm()
    assert norm > 0


def by_whole_gradients(params):
    for param in params:
        param.grad.full_tensor().norm()


# One sum of eight norms; a mode that does not stand aside for DTensors counts none.
CLIPS = collectives(all_gather=7, reduce_scatter=4, all_reduce=1)


@pytest.mark.world_size(2, 4)
@pytest.mark.collectives(all_gather=7, reduce_scatter=4, all_reduce=1)
@pytest.mark.max_collectives(bytes={"all_reduce": 8 * 4})
def test_clip_grad_norm(device_mesh, shardcheck):
    measured(shardcheck, device_mesh, by_the_norm_of_all)


@pytest.mark.world_size(2)
def test_each_rank_clips_by_its_own_norm(device_mesh, shardcheck):
    reading = measured(shardcheck, device_mesh, by_its_own_shards)
    with caught("collectives(all_reduce): 1 call was expected", "0 calls, 1 fewer"):
        shardcheck.check(reading, CLIPS)


@pytest.mark.world_size(2)
def test_clipping_gathers_whole_gradients(device_mesh, shardcheck):
    reading = measured(shardcheck, device_mesh, by_whole_gradients)
    with caught(
        "15 calls, 8 more", "8 x all_gather of float32 [16, 16] (1,024 B)", "optimizers.py:"
    ):
        shardcheck.check(reading, CLIPS)


def with_momentum(model):
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.world_size(2, 8)
@pytest.mark.memory(params={2: P // 2, 8: 1_024}, grads={2: P // 2, 8: 1_024})
@pytest.mark.memory(optimizer={2: P // 2, 8: 1_024})  # one momentum per parameter
def test_a32_optimizer_built_after_sharding(device_mesh, shardcheck):
    model = fsdp2_net16(device_mesh)
    train_measured(shardcheck, model, with_momentum(model), net16_batch())


# Built before, it keeps the whole parameters alive and steps none of the shards: its own state
# stays empty, which alone would look like a wonderful result.
@pytest.mark.world_size(8)
def test_a32_optimizer_built_before_sharding(device_mesh, shardcheck):
    model = Net16()
    optimizer = with_momentum(model)
    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=device_mesh)
    before = model.head.weight.to_local().clone()
    with shardcheck.measure(model, optimizer) as reading:
        model(net16_batch()).sum().backward()
        optimizer.step()
    assert model.head.weight.to_local().equal(before)
    assert not optimizer.state
    with caught(
        "memory(optimizer): 1,024 B (1.0 kB) was expected",
        "params 1,024 B, grads 1,024 B, optimizer 8,192 B, buffers 0 B",
        "8,192 B are parameters that no watched module has",
        "an optimizer that was built before its model was sharded",
    ):
        shardcheck.check(reading, memory(optimizer=1_024))
