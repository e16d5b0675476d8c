"""What autograd saves under pipelines, sharding and checkpointing, per rank."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from models import Net16, m8, m8_batch, net16_batch
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
    ("schedule", "packed"), [(ScheduleGPipe, (12, 30)), (Schedule1F1B, (4, 5))], ids=["gpipe", "1f1b"]
)
def test_six_micro_batches(process_group, world, saved, schedule, packed):
    reading = measure_pipeline(saved, world, schedule, 6, batch=12)
    assert reading.packed == packed[world.rank]
