"""Live memory at rest and peak of the third step of M8."""

from __future__ import annotations

import pytest
import torch
from counted import Counted
from models import m8
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

pytestmark = pytest.mark.world_size(2)


@pytest.fixture
def counted():
    counter = Counted()
    counter.start()
    yield counter
    counter.stop()


def step(model, optimizer):
    batch = torch.randn(32, 256)
    optimizer.zero_grad()
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()


def third_step(counted, model, optimizer):
    for _ in range(2):
        step(model, optimizer)
    with counted.region(model, optimizer) as region:
        step(model, optimizer)
    for name, live in {"whole": region.cpu, **region.phases}.items():
        print(name, live.start, live.end, live.peak, live.at_peak)
    print(region.cpu.grown)
    return region.cpu


@pytest.mark.parametrize(
    ("view", "live", "peak"), [(False, 10_526_784, 11_084_868), (True, 8_421_440, 8_979_528)]
)
def test_ddp(counted, process_group, view, live, peak):
    model = DistributedDataParallel(m8(), gradient_as_bucket_view=view)
    cpu = third_step(counted, model, AdamW(model.parameters()))
    assert (cpu.end, cpu.peak) == (live, peak)


def test_zero1(counted, process_group):
    model = DistributedDataParallel(m8())
    cpu = third_step(counted, model, ZeroRedundancyOptimizer(model.parameters(), AdamW))
    assert (cpu.end, cpu.peak) == (8_421_408, 9_240_612)


@pytest.mark.parametrize(
    ("strategy", "live", "peak"),
    [
        (ShardingStrategy.SHARD_GRAD_OP, 4_210_720, 6_051_880),
        (ShardingStrategy.FULL_SHARD, 4_210_720, 5_065_768),
    ],
)
def test_fsdp1(counted, process_group, strategy, live, peak):
    model = m8()
    for i, layer in enumerate(model):
        model[i] = FullyShardedDataParallel(layer, sharding_strategy=strategy, device_id="cpu")
    model = FullyShardedDataParallel(model, sharding_strategy=strategy, device_id="cpu")
    cpu = third_step(counted, model, AdamW(model.parameters()))
    assert (cpu.end, cpu.peak) == (live, peak)


@pytest.mark.parametrize(
    ("reshard", "live", "peak"), [(False, 4_210_760, 6_051_912), (True, 4_210_760, 5_131_344)]
)
def test_fsdp2(counted, device_mesh, reshard, live, peak):
    model = m8()
    for layer in model:
        fully_shard(layer, mesh=device_mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=device_mesh, reshard_after_forward=reshard)
    cpu = third_step(counted, model, AdamW(model.parameters()))
    assert (cpu.end, cpu.peak) == (live, peak)
