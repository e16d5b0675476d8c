"""Pipelines: GPipe holds the activations of all micro-batches, 1F1B of as many as stages follow."""

from __future__ import annotations

import pytest
import torch
from models import Net16
from steps import third
from systems.pipelines import interleaved, one_stage, with_data_parallel
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


# M8 in stages, a batch of 32 in eight micro-batches of 4: P = 2,105,344 B, and a layer's input of a
# micro-batch is 4 x 256 x 4 B.
P = 2_105_344
INPUT = 4 * 256 * 4


def third_step(shardcheck, training):
    return third(shardcheck, training.step, *training.watched).reading


def divided(share):
    """Expect the state of M8 in stages of equal size."""
    return [
        pytest.mark.memory(params={n: P // n for n in share}, grads={n: P // n for n in share}),
        pytest.mark.memory(optimizer={n: 2 * P // n + 16 * 4 // n for n in share}),
    ]


def stages(function):
    for mark in [*divided((2, 4)), pytest.mark.world_size(2, 4)]:
        function = mark(function)
    return function


# GPipe saves the inputs of all eight micro-batches on every stage: its 8 / n layers.
@stages
@pytest.mark.saved_activations(bytes={n: 8 * (8 // n) * INPUT for n in (2, 4)})
def test_gpipe_of_m8(process_group, shardcheck):
    third_step(shardcheck, one_stage(ScheduleGPipe))


# Narayanan et al. 2021, section 2.2: in 1F1B a stage has as many micro-batches in flight as stages
# from it to the end, however many there are. So each has its own ceiling.
@stages
@pytest.mark.max_saved_activations(bytes={2: 2 * 4 * INPUT, 4: 4 * 2 * INPUT}, rank=0)
@pytest.mark.saved_activations(bytes=3 * 2 * INPUT, rank=1, world_size=4)
@pytest.mark.saved_activations(bytes=2 * 2 * INPUT, rank=2, world_size=4)
@pytest.mark.saved_activations(bytes={2: 4 * INPUT, 4: 2 * INPUT}, rank=-1)
@pytest.mark.collectives(send=8, recv=8, rank=0)
@pytest.mark.collectives(send=8, recv=8, rank=-1)
@pytest.mark.collectives(send=16, recv=16, rank=[1, 2], world_size=4)  # forth and back
def test_1f1b_of_m8(process_group, shardcheck):
    reading = third_step(shardcheck, one_stage(Schedule1F1B))
    assert reading.collectives["send"].largest == INPUT


# Narayanan et al. 2021, section 2.2: with v = 2 stages a rank the bubble halves. What it costs: all
# but the first and last of 2 n stages send both ways, and (v - 1) n + 2 (n - 1 - r) + 1 stages'
# micro-batches of 8 / (2 n) layers are in flight on rank r.
@stages
@pytest.mark.saved_activations(bytes={2: 5 * 2 * INPUT, 4: 11 * INPUT}, rank=0)
@pytest.mark.saved_activations(bytes={2: 3 * 2 * INPUT, 4: 5 * INPUT}, rank=-1)
@pytest.mark.collectives(send=24, recv=24, rank=0)
@pytest.mark.collectives(send=24, recv=24, rank=-1)
@pytest.mark.collectives(send=32, recv=32, rank=[1, 2], world_size=4)
def test_interleaved_1f1b_of_m8(process_group, shardcheck):
    third_step(shardcheck, interleaved())


# Two stages of P / 2, each on two ranks: gradients are averaged once a step, in the last
# micro-batch's backward, whatever the number of micro-batches.
@pytest.mark.world_size(4)
@pytest.mark.memory(params=P // 2, grads=P // 2, optimizer=P + 8 * 4)
@pytest.mark.collectives(all_reduce=1, phase="backward", ignore=("send", "recv"))
@pytest.mark.collectives(send=8, recv=8, group="pp")
def test_1f1b_with_data_parallel(process_group, shardcheck):
    averaged = third_step(shardcheck, with_data_parallel()).collectives.group("dp")
    assert averaged.total.bytes == P // 2
