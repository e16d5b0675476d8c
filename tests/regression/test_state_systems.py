"""State at rest where systems differ from plain division by N; public reports by their case."""

from __future__ import annotations

import pytest
import torch
from models import Net16, Tied, m8, m8_batch, net16_batch, train, train_measured
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import SGD, AdamW

M8_BYTES = 2_105_344
NET16_BYTES = 8_192


def shard_net16(mesh, **root_options):
    model = Net16()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh, **root_options)


def fsdp1(module, strategy=ShardingStrategy.FULL_SHARD, **options):
    return FullyShardedDataParallel(module, sharding_strategy=strategy, device_id="cpu", **options)


@pytest.mark.world_size(2)
@pytest.mark.memory(params=M8_BYTES, grads=M8_BYTES, optimizer=2 * M8_BYTES + 4)  # one flat tensor
@pytest.mark.filterwarnings("ignore:.*NO_SHARD:FutureWarning")
def test_fsdp1_no_shard(process_group, shardcheck):
    model = fsdp1(m8(), ShardingStrategy.NO_SHARD)
    train_measured(shardcheck, model, AdamW(model.parameters()), m8_batch())


HYBRID = pytest.mark.world_size(mesh={"replicate": 2, "shard": 2})


@HYBRID  # divided by the two ranks of the shard axis, not by the four of the world
@pytest.mark.memory(params=M8_BYTES // 2, grads=M8_BYTES // 2, optimizer=M8_BYTES + 4)
def test_fsdp1_hybrid_shard(device_mesh, shardcheck):
    model = fsdp1(m8(), ShardingStrategy.HYBRID_SHARD, device_mesh=device_mesh)
    train_measured(shardcheck, model, AdamW(model.parameters()), m8_batch())


@HYBRID
@pytest.mark.memory(params=M8_BYTES // 2, grads=M8_BYTES // 2, optimizer=M8_BYTES + 16 * 4)
def test_fsdp2_hybrid_shard(device_mesh, shardcheck):
    model = fully_shard(m8(), mesh=device_mesh)
    train_measured(shardcheck, model, AdamW(model.parameters()), m8_batch())


# 256 x 256 weights and their biases stay single tensors, so each rank keeps a step count only for
# those that it holds a part of: 8 of 16 at two ranks.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=M8_BYTES // 2, grads=M8_BYTES // 2, optimizer=M8_BYTES + 8 * 4)
def test_fsdp1_use_orig_params(process_group, shardcheck):
    model = fsdp1(m8(), use_orig_params=True)
    train_measured(shardcheck, model, AdamW(model.parameters()), m8_batch())


@pytest.mark.world_size(4)
@pytest.mark.memory(params=32, grads=32, optimizer=64 + 4)  # 30 numbers, padded to 32: 8 a rank
def test_fsdp1_flat_parameter_is_padded(process_group, shardcheck):
    model = fsdp1(nn.Linear(5, 5))
    train_measured(shardcheck, model, AdamW(model.parameters()), torch.randn(2, 5))


@pytest.mark.world_size(4)  # 5 rows of 20 B on 4 ranks: 2, 2, 1, 0
@pytest.mark.memory(params=40, grads=40, optimizer=84, rank=slice(0, 2))
@pytest.mark.memory(params=20, grads=20, optimizer=44, rank=2)
@pytest.mark.memory(params=0, grads=0, optimizer=4, rank=3)  # the step count of an empty shard
def test_fsdp2_shards_unevenly(device_mesh, shardcheck):
    model = fully_shard(nn.Linear(5, 5, bias=False), mesh=device_mesh)
    train_measured(shardcheck, model, AdamW(model.parameters()), torch.randn(2, 5))


@pytest.mark.world_size(2)  # three matrices of 1,024 B on two owners: 2 and 1
@pytest.mark.memory(params=3_072, optimizer=2 * 2_048 + 2 * 4, rank=0)
@pytest.mark.memory(params=3_072, optimizer=2 * 1_024 + 1 * 4, rank=1)
def test_zero1_owners_are_unequal(process_group, shardcheck):
    model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(3)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    train_measured(shardcheck, model, optimizer, net16_batch())


@pytest.mark.world_size(2)
@pytest.mark.memory(grads=NET16_BYTES // 2, region="synchronised")
@pytest.mark.memory(grads=NET16_BYTES, region="not synchronised")  # no_sync keeps whole gradients
def test_a3_fsdp1_gradients_are_halved(process_group, shardcheck):
    model = fsdp1(Net16())
    with shardcheck.measure(model, region="synchronised"):
        model(net16_batch()).sum().backward()
    model.zero_grad()
    with shardcheck.measure(model, region="not synchronised"), model.no_sync():
        model(net16_batch()).sum().backward()


@pytest.mark.world_size(2)
@pytest.mark.memory(grads=NET16_BYTES)
def test_fsdp2_gradients_without_sync_are_whole(device_mesh, shardcheck):
    model = shard_net16(device_mesh)
    model.set_requires_gradient_sync(False)
    with shardcheck.measure(model):
        model(net16_batch()).sum().backward()


# The root of two matrices stays whole after forward by default: its shard and its 2,048 B.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=NET16_BYTES // 2, region="before")
@pytest.mark.memory(params=NET16_BYTES // 2 + 2_048, region="default")
@pytest.mark.memory(params=NET16_BYTES // 2, region="resharded")
def test_a5_root_stays_whole_after_no_grad_forward(device_mesh, shardcheck):
    model = shard_net16(device_mesh)
    with shardcheck.measure(model, region="before"):
        pass
    with shardcheck.measure(model, region="default"), torch.no_grad():
        model(net16_batch())
    with shardcheck.measure(model, region="resharded"):
        model.reshard()


@pytest.mark.world_size(2)
@pytest.mark.memory(params=NET16_BYTES // 2)
def test_a5_root_that_reshards_is_a_shard_after_no_grad_forward(device_mesh, shardcheck):
    model = shard_net16(device_mesh, reshard_after_forward=True)
    with shardcheck.measure(model), torch.no_grad():
        model(net16_batch())


@pytest.mark.world_size(8)  # 8 local matrices of 128 B; `numel` of a DTensor would say 1,024 each
@pytest.mark.memory(params=1_024, grads=1_024, optimizer=2 * 1_024 + 8 * 4)
def test_a12_dtensor_sizes_are_local(device_mesh, shardcheck):
    model = shard_net16(device_mesh)
    train_measured(shardcheck, model, AdamW(model.parameters()), net16_batch())


@pytest.mark.world_size(8)
@pytest.mark.memory(params=5_120, region="whole")  # 4,096 B of both owners, once, + 1,024 B
@pytest.mark.memory(params=640, region="sharded")  # and still tied
def test_a31_tied_weights_count_once(device_mesh, shardcheck):
    model = Tied()
    with shardcheck.measure(model, region="whole"):
        pass
    fully_shard(model, mesh=device_mesh)
    with shardcheck.measure(model, region="sharded"):
        model(torch.arange(8)).sum().backward()


# An optimizer built too early keeps the whole parameters alive and steps none of the shards: its
# state stays empty, which alone would look like a wonderful result.
@pytest.mark.world_size(8)
@pytest.mark.memory(params=1_024, grads=1_024, optimizer=NET16_BYTES)
def test_a32_optimizer_built_before_sharding(device_mesh, shardcheck):
    model = Net16()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for block in model.blocks:
        fully_shard(block, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    train_measured(shardcheck, model, optimizer, net16_batch())


@pytest.mark.world_size(8)
@pytest.mark.memory(params=1_024, grads=1_024, optimizer=1_024)  # one momentum per parameter
def test_a32_optimizer_built_after_sharding(device_mesh, shardcheck):
    model = shard_net16(device_mesh)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    train_measured(shardcheck, model, optimizer, net16_batch())


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
