"""Pipelines: GPipe holds the activations of all micro-batches, 1F1B of as many as stages follow."""

from __future__ import annotations

import pytest
import torch
from models import Net16
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.functional import mse_loss


def saves(**figures):
    """Expect a count of saved tensors of the first and of the last stage."""
    return [
        pytest.mark.saved_activations(**{name: count, "rank": rank})
        for name, counts in figures.items()
        for rank, count in zip((0, -1), counts, strict=True)
    ]


def case(schedule, micro_batches, batch=8, **figures):
    name = f"{schedule.__name__.removeprefix('Schedule').lower()}-{micro_batches}"
    return pytest.param((schedule, micro_batches, batch), id=name, marks=saves(**figures))


# A stage saves its input and its ReLU's output per micro-batch; the last also its weight, since its
# input wants a gradient, and both sides of the loss.
CASES = [
    case(ScheduleGPipe, 2, packed=(4, 10), count=(4, 8)),
    case(ScheduleGPipe, 4, packed=(8, 20), count=(8, 16)),
    case(ScheduleGPipe, 8, packed=(16, 40), count=(16, 32)),
    case(ScheduleGPipe, 6, 12, packed=(12, 30)),  # the exercise of the teaching notebook
    case(Schedule1F1B, 2, packed=(4, 5), count=(4, 4)),
    case(Schedule1F1B, 4, packed=(4, 5), count=(4, 4)),
    case(Schedule1F1B, 8, packed=(4, 5), count=(4, 4)),
    case(Schedule1F1B, 6, 12, packed=(4, 5)),
]


@pytest.mark.world_size(2)
@pytest.mark.parametrize("case", CASES)
def test_saved_activations(case, process_group, world, shardcheck):
    schedule, micro_batches, batch = case
    module = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    stage = PipelineStage(module, world.rank, 2, torch.device("cpu"))
    pipeline = schedule(stage, micro_batches, loss_fn=mse_loss)
    x, target = torch.randn(batch, 32), torch.randn(batch, 32)

    def step():
        if world.rank == 0:
            pipeline.step(x)
        else:
            pipeline.step(target=target, losses=[])

    step()  # the first one sends extra messages
    with shardcheck.measure(stage) as reading:
        step()
    # An activation forth and a gradient back per micro-batch.
    sent = {name: reading.collectives[name].count for name in reading.collectives}
    assert sent == {"send": micro_batches, "recv": micro_batches}
    assert reading.phases["backward"].memory.peak > 0


# L = 3 units that reshard after forward, and the root, which does not. A stage keeps what a
# backward gathered until the next forward has used it, and reduces in the last one only: of M
# micro-batches each forward but the last's successor gathers anew, L (M + 1) + 1 in any schedule.
# Accumulation without a pipeline gathers M (2 L + 1) and reduces M (L + 1) times (A26).
@pytest.mark.world_size(4)
@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize(
    ("once", "gathers"), [pytest.param(True, 4, id="once"), pytest.param(False, 16, id="default")]
)
def test_a_sharded_stage_gathers(schedule, once, gathers, process_group, shardcheck):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    module = Net16()
    for unit in (*module.blocks, module):
        fully_shard(unit, mesh=mesh["dp"], reshard_after_forward=False if once else None)
    place = mesh.get_local_rank("pp")
    stage = PipelineStage(module, place, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    pipeline = schedule(stage, 4, loss_fn=mse_loss)
    batch = torch.ones(8, 16)

    def step():
        pipeline.step(batch) if place == 0 else pipeline.step(target=batch)

    step()
    with shardcheck.measure() as reading:
        step()
    sharding = reading.collectives.group("dp")
    called = {name: sharding[name].count for name in sharding}
    assert called == {"all_gather": gathers, "reduce_scatter": 3 + 1}
    assert reading.collectives.group("pp").total.count == 2 * 4  # a send and a receive each
