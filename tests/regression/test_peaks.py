"""Live memory at rest and peak of the third step of M8, to the byte, and what the peak was.

P = 526,336 parameters x 4 B = 2,105,344 B, U = P/8 = 263,168 B is one Linear, W = 262,144 B its
weight. At rest are the state and, under DDP, its buckets. The batch (32 x 256
x 4 B = 32,768 B) and the loss (4 B) are local to the step: no figure at rest has them. A device
mesh keeps its ranks, 4 B each, and is counted where the counter starts before it.
"""

from __future__ import annotations

import pytest
import torch
from models import m8
from steps import P, measure_third
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode

U = P // 8
BATCH = 32_768
MESH = 2 * 4

pytestmark = pytest.mark.world_size(2)


def third_step(shardcheck, model, optimizer):
    reading = measure_third(shardcheck, model, optimizer).reading
    cpu = reading.memory.live_on("cpu")
    for live in (cpu, *(phase["cpu"] for phase in reading.live_phases.values())):
        assert sum(live.at_peak.values()) == live.peak
    assert cpu.growth == 0
    assert cpu.grown == ()
    return cpu


def test_ddp(shardcheck, process_group):
    model = DistributedDataParallel(m8())
    cpu = third_step(shardcheck, model, AdamW(model.parameters()))
    assert cpu.end == 5 * P + 16 * 4 == 10_526_784
    assert cpu.peak == 11_084_868
    # AdamW's step of one weight: two temporaries of W, one of a bias.
    assert cpu.at_peak == {
        "parameters": P,
        "gradients": P,
        "optimizer state": 2 * P + 16 * 4,
        "communication buffers": P,  # the hidden copy: the buckets
        "inputs": BATCH,
        "temporaries": 2 * 262_144 + 1_024 + 4,
    }


def test_ddp_with_gradients_as_views_of_buckets(shardcheck, process_group):
    model = DistributedDataParallel(m8(), gradient_as_bucket_view=True)
    cpu = third_step(shardcheck, model, AdamW(model.parameters()))
    assert cpu.end == 4 * P + 16 * 4 == 8_421_440
    assert cpu.peak == 8_979_528
    assert "communication buffers" not in cpu.at_peak


def test_zero1(shardcheck, process_group):
    model = DistributedDataParallel(m8())
    cpu = third_step(shardcheck, model, ZeroRedundancyOptimizer(model.parameters(), AdamW))
    assert cpu.end == 4 * P + 8 * 4 == 8_421_408
    assert cpu.peak == 9_240_612
    assert cpu.at_peak["optimizer state"] == P + 8 * 4
    assert cpu.at_peak["communication buffers"] == P


@pytest.mark.parametrize(
    ("strategy", "peak", "unsharded"),
    [
        pytest.param(ShardingStrategy.SHARD_GRAD_OP, 6_051_880, 8 * U, id="zero2"),
        pytest.param(ShardingStrategy.FULL_SHARD, 5_065_768, 2 * U, id="zero3"),
    ],
)
def test_fsdp1(shardcheck, process_group, strategy, peak, unsharded):
    model = m8()
    for number, layer in enumerate(model):
        model[number] = FullyShardedDataParallel(layer, sharding_strategy=strategy, device_id="cpu")
    model = FullyShardedDataParallel(model, sharding_strategy=strategy, device_id="cpu")
    cpu = third_step(shardcheck, model, AdamW(model.parameters()))
    assert cpu.end == 2 * P + 8 * 4 == 4_210_720
    assert cpu.peak == peak
    assert cpu.at_peak["parameters"] == P // 2
    assert cpu.at_peak["unsharded parameters"] == unsharded


@pytest.mark.parametrize(
    ("reshard", "peak", "unsharded"),
    [
        pytest.param(False, 6_051_912, 8 * U, id="zero2"),
        pytest.param(True, 5_131_344, U, id="zero3"),
    ],
)
def test_fsdp2(shardcheck, device_mesh, reshard, peak, unsharded):
    model = m8()
    for layer in model:
        fully_shard(layer, mesh=device_mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=device_mesh, reshard_after_forward=reshard)
    cpu = third_step(shardcheck, model, AdamW(model.parameters()))
    assert cpu.end == 2 * P + 16 * 4 + MESH == 4_210_760
    assert cpu.peak == peak
    assert cpu.at_peak["parameters"] == P // 2
    assert cpu.at_peak["unsharded parameters"] == unsharded


def test_fsdps_working_set_does_not_grow_with_the_depth(shardcheck, device_mesh):
    """Reduce-scatter inputs that were held to the end of backward would (A28)."""
    transient = []
    for depth in (8, 16):
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(depth)))
        for layer in model:
            fully_shard(layer, mesh=device_mesh)
        fully_shard(model, mesh=device_mesh)
        reading = measure_third(shardcheck, model, AdamW(model.parameters()))
        at_peak = reading.phases["backward"].memory.at_peak
        transient.append(at_peak["unsharded parameters"] + at_peak["communication buffers"])
    assert transient == [3 * U, 3 * U]


def test_a_forward_without_gradients_leaves_the_root_unsharded(shardcheck, device_mesh):
    """It is a module of its own group, which reshards only after backward (A5)."""
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16, bias=False) for _ in range(4)))
    for layer in list(model)[1:]:
        fully_shard(layer, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    batch = torch.ones(4, 16)
    with shardcheck.measure(model) as reading, torch.no_grad():
        model(batch)
    assert reading.memory.growth == 1_024
    [record] = reading.memory.grown
    assert (record.bytes, record.category) == (1_024, "unsharded parameters")


class TakesDTensors(TorchDispatchMode):
    """Name the operators that it sees, and take those of DTensors itself."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_what_a_dtensors_operator_does_inside(shardcheck, device_mesh):
    """It sums first (a buffer of 100 floats), reads that into its result, and lets go of it."""
    value = DTensor.from_local(torch.ones(100), device_mesh, [Partial()])
    with TakesDTensors() as naive:
        value.relu()
    assert naive.seen == ["aten.relu.default"]
    with shardcheck.measure() as reading:
        held = value.relu()
    assert isinstance(held, DTensor)
    assert reading.memory.peak_above_start == 2 * 400
    assert reading.memory.growth == 400
    # The sum, and the operand that it was made of.
    assert reading.memory.at_peak["communication buffers"] == 2 * 400
