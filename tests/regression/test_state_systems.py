"""State at rest where systems differ from plain division by N; public reports by their case."""

from __future__ import annotations

import pytest
import torch
from models import Net16, net16_batch, train, train_measured
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import AdamW

NET16_BYTES = 8_192


def shard_net16(mesh, **root_options):
    model = Net16()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh, **root_options)


@pytest.mark.world_size(2)  # three matrices of 1,024 B on two owners: 2 and 1
@pytest.mark.memory(params=3_072, optimizer=2 * 2_048 + 2 * 4, rank=0)
@pytest.mark.memory(params=3_072, optimizer=2 * 1_024 + 1 * 4, rank=1)
def test_zero1_owners_are_unequal(process_group, shardcheck):
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(3)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    train_measured(shardcheck, model, optimizer, net16_batch())


@pytest.mark.world_size(8)  # 8 local matrices of 128 B; `numel` of a DTensor would say 1,024 each
@pytest.mark.memory(params=1_024, grads=1_024, optimizer=2 * 1_024 + 8 * 4)
def test_a12_dtensor_sizes_are_local(device_mesh, shardcheck):
    model = shard_net16(device_mesh)
    train_measured(shardcheck, model, AdamW(model.parameters()), net16_batch())


@pytest.mark.world_size(2)
@pytest.mark.memory(optimizer=0, region="first backward")  # AdamW makes its state in step()
@pytest.mark.memory(optimizer=NET16_BYTES + 8 * 4, region="second backward")  # 2P/N + 4 B each
def test_a41_optimizer_state_appears_with_the_first_step(device_mesh, shardcheck):
    model = shard_net16(device_mesh)
    optimizer = AdamW(model.parameters())
    with shardcheck.measure(model, optimizer, region="first backward"):
        model(net16_batch()).sum().backward()
    optimizer.step()
    with shardcheck.measure(model, optimizer, region="second backward"):
        train(model, optimizer, net16_batch(), steps=1)


# A fixed buffer beside the state (DeepSpeed's buckets) has a name of its own in `memory.parts`.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=NET16_BYTES // 2, grads=NET16_BYTES // 2, buffers=4_000_000)
def test_a36_fixed_buffer_is_told_from_sharded_state(device_mesh, shardcheck):
    model, bucket = shard_net16(device_mesh), torch.empty(1_000_000)
    with shardcheck.measure(model=model, bucket=bucket) as reading:
        model(net16_batch()).sum().backward()
    assert reading.memory.parts["bucket"].state == 4_000_000
    assert reading.memory.parts["model"].state == NET16_BYTES
