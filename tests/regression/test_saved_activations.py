"""What autograd saves under pipelines, sharding and checkpointing, per rank."""

from __future__ import annotations

import pytest
import torch
from models import Net16, m8, m8_batch, net16_batch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from pytest_shardcheck.instruments.saved_activations import SavedActivations
from pytest_shardcheck.instruments.surroundings import Surroundings

pytestmark = pytest.mark.world_size(2)


@pytest.fixture
def saved():
    surroundings = Surroundings()
    surroundings.start()
    yield SavedActivations(surroundings)
    surroundings.stop()


def measured(saved, body):
    window = saved.open()
    try:
        body()
    finally:
        reading = saved.close(window)
    return reading


def measure_pipeline(saved, world, schedule, micro_batches, batch):
    """Take two steps of a pipeline of two stages and measure the second."""
    stage = PipelineStage(
        nn.Sequential(nn.Linear(32, 32), nn.ReLU()), world.rank, 2, torch.device("cpu")
    )
    pipeline = schedule(stage, micro_batches, loss_fn=mse_loss)
    x, target = torch.randn(batch, 32), torch.randn(batch, 32)

    def step():
        if world.rank == 0:
            pipeline.step(x)
        else:
            pipeline.step(target=target, losses=[])

    step()
    return measured(saved, step)


# A stage saves per micro-batch its input and the ReLU's output; the last one also its weight (its
# input wants a gradient) and both sides of the loss. GPipe holds all micro-batches at once, 1F1B
# as many as there are stages from here on.
@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_gpipe(process_group, world, saved, micro_batches):
    reading = measure_pipeline(saved, world, ScheduleGPipe, micro_batches, batch=8)
    expected = (2, 2) if world.rank == 0 else (5, 4)
    assert (reading.packed, reading.count) == tuple(micro_batches * n for n in expected)


@pytest.mark.parametrize("micro_batches", [2, 4, 8])
def test_1f1b(process_group, world, saved, micro_batches):
    reading = measure_pipeline(saved, world, Schedule1F1B, micro_batches, batch=8)
    assert (reading.packed, reading.count) == ((4, 4) if world.rank == 0 else (5, 4))


# The exercise of the teaching notebook.
@pytest.mark.parametrize(
    ("schedule", "packed"),
    [(ScheduleGPipe, (12, 30)), (Schedule1F1B, (4, 5))],
    ids=["gpipe", "1f1b"],
)
def test_six_micro_batches(process_group, world, saved, schedule, packed):
    reading = measure_pipeline(saved, world, schedule, 6, batch=12)
    assert reading.packed == packed[world.rank]


def train_step(model, batch):
    model(batch).sum().backward()


def measure_second_step(saved, model, batch):
    train_step(model, batch)
    return measured(saved, lambda: train_step(model, batch))


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
def test_sharding_changes_nothing(build, device_mesh, saved):
    reading = measure_second_step(saved, build(device_mesh), m8_batch())
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
def test_fsdp2_under_checkpoints(model, forward, peak, device_mesh, saved):
    model = model()
    for block in model.blocks:
        fully_shard(block, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    reading = measure_second_step(saved, model, net16_batch())
    assert (reading.at_forward_end, reading.bytes) == (forward, peak)


# Megatron's pair: the first matrix by columns, the second by rows; activations in between are
# sharded. Inputs 4 x 16 numbers whole; ReLU's output 4 x 64 / 2, saved twice.
def test_tensor_parallel(device_mesh, saved):
    model = parallelize_module(
        nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)),
        device_mesh,
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
    )
    reading = measure_second_step(saved, model, net16_batch())
    assert (reading.count, reading.bytes) == (3, 4 * 16 * 4 + 4 * 32 * 4)
    assert reading.unseen == ()
