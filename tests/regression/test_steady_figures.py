"""Every step gives the same figures, whatever the backend's threads were doing."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from models import m8
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from pytest_shardcheck.instruments.watched import opened

pytestmark = pytest.mark.world_size(2)

STEPS = int(os.environ.get("STEADY_STEPS", "10"))


def one_value(counted, step, *watched, warm_ups=2):
    """Take steps and return the reading that each of them gave."""
    # Gradients that the warm-up leaves behind have their module's name only if it is known by then.
    counted.surroundings.learn(opened(watched).modules)
    for _ in range(warm_ups):
        step()
    readings = []
    for _ in range(STEPS):
        with counted.region(*watched) as region:
            step()
        readings.append({"whole": region.cpu, **region.phases})
    first = readings[0]
    figures = [
        {k: (v.start, v.end, v.peak, dict(v.at_peak)) for k, v in r.items()} for r in readings
    ]
    different = [(n, f) for n, f in enumerate(figures) if f != figures[0]]
    assert not different, f"{figures[0]}\n{len(different)} others, the first {different[0]}"
    for name in first:
        for field in ("largest", "grown", "first_crossing"):
            values = [getattr(reading[name], field) for reading in readings]
            others = [value for value in values if value != values[0]]
            assert not others, f"{name}.{field}: {values[0]} and {others[0]}"
    return first


def trained(model, optimizer):
    def step():
        batch = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()

    return step


@pytest.mark.parametrize("kind", ["plain", "view", "fp16", "zero1"])
def test_ddp(counted, process_group, kind):
    model = DistributedDataParallel(m8(), gradient_as_bucket_view=kind == "view", bucket_cap_mb=1)
    if kind == "fp16":
        model.register_comm_hook(None, fp16_compress_hook)
    if kind == "zero1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    else:
        optimizer = AdamW(model.parameters())
    one_value(counted, trained(model, optimizer), model, optimizer)


@pytest.mark.parametrize("strategy", [ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD])
def test_fsdp1(counted, process_group, strategy):
    model = m8()
    for i, layer in enumerate(model):
        model[i] = FullyShardedDataParallel(layer, sharding_strategy=strategy, device_id="cpu")
    model = FullyShardedDataParallel(model, sharding_strategy=strategy, device_id="cpu")
    optimizer = AdamW(model.parameters())
    one_value(counted, trained(model, optimizer), model, optimizer)


@pytest.mark.parametrize("reshard", [False, True])
def test_fsdp2(counted, device_mesh, reshard):
    model = m8()
    for layer in model:
        fully_shard(layer, mesh=device_mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=device_mesh, reshard_after_forward=reshard)
    optimizer = AdamW(model.parameters())
    one_value(counted, trained(model, optimizer), model, optimizer)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # newer names are 2.13's
def test_asynchronous_calls(counted, process_group):
    def step():
        works = [dist.all_reduce(torch.ones(1000 + n), async_op=True) for n in range(5)]
        other = torch.ones(3_000)
        for work in works:
            work.wait()
        del works, work
        gathered = torch.empty(20_000)
        late = dist.all_gather_into_tensor(gathered, torch.ones(10_000), async_op=True)
        more = torch.ones(5_000)
        late.wait()
        del gathered, more, other, late
        torch.ones(9_000)

    one_value(counted, step)


def test_work_that_nobody_waits_for(counted, process_group):
    model, value = nn.Linear(64, 64), torch.ones(1)
    optimizer = AdamW(model.parameters())

    def step():
        dist.all_reduce(torch.ones(20_000), async_op=True)
        optimizer.zero_grad()
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        dist.all_reduce(value)

    one_value(counted, step, model, optimizer)


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
def test_functional_collectives(counted, process_group):
    group = dist.group.WORLD

    def step():
        first = funcol.all_reduce(torch.ones(4_000), "sum", group)
        second = funcol.all_gather_tensor(torch.ones(3_000), 0, group)
        total = first.sum() + second.sum()
        third = funcol.reduce_scatter_tensor(torch.ones(5_000), "sum", 0, group)
        del first, second
        torch.ones(2_000)
        (third + 1).sum()
        return total

    one_value(counted, step)


def test_point_to_point(counted, process_group, world):
    peer = 1 - world.rank

    def step():
        received = torch.empty(6_000)
        ops = [
            dist.P2POp(dist.isend, torch.ones(6_000), peer),
            dist.P2POp(dist.irecv, received, peer),
        ]
        works = dist.batch_isend_irecv(ops)
        del ops
        torch.ones(2_000)
        for work in works:
            work.wait()
        del works, work
        (received * 2).sum()

    one_value(counted, step)


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
def test_pipeline(counted, process_group, world, schedule):
    part = nn.Sequential(nn.Linear(32, 32), nn.ReLU())
    stage = PipelineStage(part, world.rank, 2, torch.device("cpu"))
    runner = schedule(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = AdamW(part.parameters())

    def step():
        optimizer.zero_grad()
        if world.rank == 0:
            runner.step(torch.ones(8, 32))
        else:
            runner.step(target=torch.ones(8, 32))
        optimizer.step()

    one_value(counted, step, part, optimizer)
