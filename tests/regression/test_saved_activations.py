"""What autograd saves is the same however parameters are sharded, gathered and freed."""

from __future__ import annotations

import pytest
from models import Net16, m8, m8_batch, net16_batch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.world_size(2)


def train_step(model, batch):
    model(batch).sum().backward()


def measure_second_step(shardcheck, model, batch):
    train_step(model, batch)
    with shardcheck.measure(model) as reading:
        train_step(model, batch)
    return reading.saved


INPUTS = 8 * 32 * 256 * 4  # each Linear of M8 saves its input, and nothing else is saved


def ddp(_):
    return DistributedDataParallel(m8())


def fsdp1(strategy, **options):
    def build(_):
        layers = [
            FullyShardedDataParallel(layer, sharding_strategy=strategy, device_id="cpu", **options)
            for layer in m8()
        ]
        model = nn.Sequential(*layers)
        return FullyShardedDataParallel(
            model, sharding_strategy=strategy, device_id="cpu", **options
        )

    return build


def fsdp2(reshard):
    def build(mesh):
        model = m8()
        for layer in model:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)

    return build


# However the parameters are sharded, gathered and freed, what is saved of activations is the same.
@pytest.mark.parametrize(
    "build",
    [
        pytest.param(ddp, id="ddp"),
        pytest.param(fsdp1(ShardingStrategy.SHARD_GRAD_OP), id="fsdp1-zero2"),
        pytest.param(fsdp1(ShardingStrategy.FULL_SHARD), id="fsdp1-zero3"),
        pytest.param(fsdp1(ShardingStrategy.FULL_SHARD, use_orig_params=True), id="fsdp1-orig"),
        pytest.param(fsdp2(reshard=False), id="fsdp2-zero2"),
        pytest.param(fsdp2(reshard=True), id="fsdp2-zero3"),
    ],
)
@pytest.mark.world_size(2)
def test_sharding_changes_nothing(build, device_mesh, shardcheck):
    reading = measure_second_step(shardcheck, build(device_mesh), m8_batch())
    assert (reading.count, reading.bytes, reading.at_forward_end) == (8, INPUTS, INPUTS)
    assert reading.packed == 8 + 7  # all weights but the first: its input wants no gradient
    assert reading.unseen == ()


class Checkpointed(Net16):
    """Net16 with a checkpoint around each block."""

    def forward(self, batch):
        hidden = self.emb(batch)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return self.head(hidden)


# Inputs are 4 x 16 numbers, 256 B: of 8 matrices; under checkpoints of emb, head and 3 blocks, and
# then of both matrices of the block that is recomputed, whose first input is the checkpoint's own.
@pytest.mark.parametrize(
    ("model", "forward", "peak"),
    [
        pytest.param(Net16, 8 * 256, 8 * 256, id="none"),
        pytest.param(Checkpointed, 5 * 256, 5 * 256, id="checkpoints"),
    ],
)
def test_fsdp2_under_checkpoints(model, forward, peak, device_mesh, shardcheck):
    model = model()
    for block in model.blocks:
        fully_shard(block, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    reading = measure_second_step(shardcheck, model, net16_batch())
    assert (reading.at_forward_end, reading.bytes) == (forward, peak)


# Megatron's pair: the first matrix by columns, the second by rows; activations in between are
# sharded. Inputs 4 x 16 numbers whole; ReLU's output 4 x 64 / 2, saved twice.
def test_tensor_parallel(device_mesh, shardcheck):
    model = parallelize_module(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)),
        device_mesh,
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
    )
    reading = measure_second_step(shardcheck, model, net16_batch())
    assert (reading.count, reading.bytes) == (3, 4 * 16 * 4 + 4 * 32 * 4)
    assert reading.unseen == ()
