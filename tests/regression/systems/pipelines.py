"""Rows of pipelines: M8 cut into stages, a batch of 32 in eight micro-batches."""

from __future__ import annotations

import torch
import torch.distributed as dist
from models import m8
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from .base import System, Training

MICRO_BATCHES = 8


def total(output, _):
    """Be a loss that saves nothing."""
    return output.sum()


def stage_of(number, stages, group=None, wrap=None):
    """Return one of the stages that M8 is cut into, whose layers keep their names."""
    layers = 8 // stages
    part = m8()[number * layers : (number + 1) * layers]
    return PipelineStage(
        wrap(part) if wrap else part, number, stages, torch.device("cpu"), group=group
    )


def trained_in_stages(pipeline, stages, *, rows=32):
    """Train a rank's stages: the first of all gets the batch, the last its goal."""
    optimizer = AdamW([param for stage in stages for param in stage.submod.parameters()])

    def step():
        optimizer.zero_grad()
        batch = torch.randn(rows, 256)
        inputs = (batch,) if any(stage.is_first for stage in stages) else ()
        goal = {"target": batch} if any(stage.is_last for stage in stages) else {}
        pipeline.step(*inputs, **goal)
        optimizer.step()

    return Training(step=step, watched=(*(stage.submod for stage in stages), optimizer))


def one_stage(schedule, *, micro_batches=MICRO_BATCHES, rows=32, group=None, wrap=None):
    """Train M8 with a stage on each rank of a group."""
    group = group or dist.group.WORLD
    stage = stage_of(group.rank(), group.size(), group, wrap)
    pipeline = schedule(stage, micro_batches, loss_fn=total)
    return trained_in_stages(pipeline, [stage], rows=rows)


def interleaved(_=None):
    """Train M8 with two stages on each rank, a round apart."""
    rank, size = dist.get_rank(), dist.get_world_size()
    stages = [stage_of(number, 2 * size) for number in (rank, rank + size)]
    pipeline = ScheduleInterleaved1F1B(stages, MICRO_BATCHES, loss_fn=total)
    return trained_in_stages(pipeline, stages)


def with_data_parallel(_=None):
    """Two stages, each on two ranks that average their gradients."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))

    def wrap(part):
        return DistributedDataParallel(part, process_group=mesh.get_group("dp"))

    return one_stage(Schedule1F1B, group=mesh.get_group("pp"), wrap=wrap)


def row(name, build, *sizes):
    # CommDebugMode raises in a stage's forward; sends and receives are what it does not count.
    return System(name=name, page="pipelines", build=build, counted=False, sizes=sizes or (2, 4))


SYSTEMS = [
    row("GPipe", lambda _: one_stage(ScheduleGPipe)),
    row("1F1B", lambda _: one_stage(Schedule1F1B)),
    row("Interleaved 1F1B", interleaved),
    row("1F1B x DDP", with_data_parallel, 4),
]
