"""Communication volumes of a step, in bytes that each rank of a ring of N sends.

Rajbhandari et al. 2020, section 7, for a model of Psi bytes: plain data parallelism sends 2 Psi
(all_reduce), stage 2 as much (reduce_scatter, all_gather), stage 3 half as much again (another
all_gather). That is for many ranks: of all_reduce a ring of N sends 2 (N - 1) / N, of each of the
others (N - 1) / N. M8 has Psi = 2,105,344 B in layers that 2 and 4 divide: nothing is padded.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import m8
from steps import P as PSI
from steps import measure_third, step
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.optim import AdamW
from wrapped import ddp, fsdp2, zero1

from pytest_shardcheck import collectives, max_collectives

pytestmark = [
    pytest.mark.world_size(2, 4),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
]


def ring(times, size):
    """Return `times` Psi (N - 1) / N: what each of N ranks sends."""
    return times * PSI * (size - 1) // size


def fsdp1(model, strategy):
    for number, layer in enumerate(model):
        model[number] = FullyShardedDataParallel(layer, sharding_strategy=strategy, device_id="cpu")
    model = FullyShardedDataParallel(model, sharding_strategy=strategy, device_id="cpu")
    return model, AdamW(model.parameters())


def zero2_fsdp1(model, _):
    return fsdp1(model, ShardingStrategy.SHARD_GRAD_OP)


def zero3_fsdp1(model, _):
    return fsdp1(model, ShardingStrategy.FULL_SHARD)


def zero2_fsdp2(model, mesh):
    return fsdp2(model, mesh, reshard=False)


@pytest.mark.parametrize(
    ("build", "times"),
    [(ddp, 2), (zero2_fsdp1, 2), (zero2_fsdp2, 2), (zero3_fsdp1, 3), (fsdp2, 3)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_as_in_the_paper(build, times, device_mesh, world, shardcheck):
    reading = measure_third(shardcheck, *build(m8(), device_mesh))
    assert reading.collectives.total.wire_bytes == ring(times, world.size)


# Stage 1 of the paper sends 2 Psi as well: gradients go to the owners of their moments, parameters
# come back. ZeroRedundancyOptimizer leaves the sum of all gradients everywhere to DDP, and then
# each owner broadcasts its parameters, Psi more: of a broadcast a ring's ranks pass on all.
def test_zero1_sends_more_than_in_the_paper(device_mesh, world, shardcheck):
    reading = measure_third(shardcheck, *zero1(m8()))
    paper = ring(2, world.size)
    assert reading.collectives.total.wire_bytes == paper + PSI
    with caught(
        f"max_collectives(wire_bytes): the ceiling of {paper:,} B",
        f"{PSI:,} B (",
        "2 x all_reduce of float32 [263168] (1,052,672 B) in group 'world', backward in 4, 0 at",
        "x broadcast of float32 [256, 256] (262,144 B) in group 'world', peer 0, optimizer at",
    ):
        shardcheck.check(reading, max_collectives(wire_bytes=paper))


# Uneven rows are padded, and the padding is sent: 5 x 5 floats on four ranks are 8 x 5 of FSDP2's
# rows, and 28 of FSDP1's flat parameter. The root gathers and scatters once.
@pytest.mark.world_size(4)
@pytest.mark.parametrize(("kind", "padded"), [("fsdp1", 28 * 4), ("fsdp2", 40 * 4)])
def test_padding_is_sent(kind, padded, device_mesh, shardcheck):
    model = nn.Linear(5, 5, bias=False)
    if kind == "fsdp1":
        model = FullyShardedDataParallel(model, device_id="cpu")
    else:
        fully_shard(model, mesh=device_mesh)
    with shardcheck.measure(model) as reading:
        model(torch.ones(2, 5)).sum().backward()
    assert reading.collectives.total.wire_bytes == 2 * padded * 3 // 4
    # The paper's volume is that of the elements.
    unpadded = 2 * 25 * 4 * 3 // 4
    with caught(
        f"max_collectives(wire_bytes): the ceiling of {unpadded} B",
        f"{2 * padded * 3 // 4} B, ",
        f"({padded} B) in group 'world', forward in",
        f"1 x reduce_scatter of float32 [{padded // 4}] ({padded} B) in group 'world', backward",
    ):
        shardcheck.check(reading, max_collectives(wire_bytes=unpadded))


@pytest.mark.world_size(2)
def test_a_forgotten_reshard_false_costs_half_as_much_again(device_mesh, shardcheck):
    expected = max_collectives(wire_bytes=ring(2, 2))
    shardcheck.check(measure_third(shardcheck, *zero2_fsdp2(m8(), device_mesh)), expected)
    with caught(
        f"{ring(3, 2):,} B (3.2 MB), {ring(1, 2):,} B (50.0 %) above",
        "8 x all_gather of float32 [65792] (263,168 B) in group 'world', backward in 7, 6, 5, 4",
    ):
        shardcheck.check(measure_third(shardcheck, *fsdp2(m8(), device_mesh)), expected)


# Two micro-batches: with gradients synchronised in the last only, 2 + 3 Psi; in both, 3 + 3.
@pytest.mark.world_size(2)
def test_gradients_scattered_for_each_micro_batch(device_mesh, shardcheck):
    model, _ = fsdp2(m8(), device_mesh)

    def micro_batches(*syncs):
        for sync in syncs:
            model.set_requires_gradient_sync(sync)
            model(torch.randn(32, 256)).sum().backward()
        model.zero_grad()

    expected = max_collectives(wire_bytes=ring(5, 2))
    micro_batches(False, True)
    with shardcheck.measure(model) as reading:
        micro_batches(False, True)
    assert reading.collectives.total.wire_bytes == ring(5, 2)
    with shardcheck.measure(model) as reading:
        micro_batches(True, True)
    with caught(f"{ring(1, 2):,} B (20.0 %) above", "x reduce_scatter of float32"):
        shardcheck.check(reading, expected)


@pytest.mark.world_size(2)
def test_ddp_summing_twice(device_mesh, shardcheck):
    """Nothing but the volume tells that somebody sums again what DDP has averaged."""
    model, optimizer = ddp(m8())
    expected = max_collectives(wire_bytes=ring(2, 2))
    shardcheck.check(measure_third(shardcheck, model, optimizer), expected)
    with shardcheck.measure(model, optimizer) as reading:
        step(model, optimizer)
        for param in model.parameters():
            torch.distributed.all_reduce(param.grad)
    with caught(
        f"{ring(2, 2):,} B (100.0 %) above",
        "8 x all_reduce of float32 [256, 256] (262,144 B) in group 'world', forward at",
    ):
        shardcheck.check(reading, expected)


# A37, DeepSpeed #5758: what should scatter gradients sums them everywhere. Here by a strategy that
# shards nothing: the volume is stage 2's to the byte, and only the kind of the calls tells.
@pytest.mark.world_size(2)
@pytest.mark.filterwarnings("ignore:.*NO_SHARD:FutureWarning")
def test_a37_all_reduce_in_place_of_reduce_scatter(process_group, shardcheck):
    none_large = max_collectives(largest={"all_reduce": 1_000})  # a norm, a loss
    right = measure_third(shardcheck, *zero2_fsdp1(m8(), None))
    shardcheck.check(right, none_large)
    shardcheck.check(right, collectives(all_gather=8, reduce_scatter=8))
    wrong = measure_third(shardcheck, *fsdp1(m8(), ShardingStrategy.NO_SHARD))
    assert wrong.collectives.total.wire_bytes == right.collectives.total.wire_bytes == ring(2, 2)
    with caught("max_collectives(largest[all_reduce])", "263,168 B", "8 x all_reduce of float32"):
        shardcheck.check(wrong, none_large)
    with caught("collectives(reduce_scatter): 8 calls", "0 calls, 8 fewer", "all_reduce): 0 calls"):
        shardcheck.check(wrong, collectives(all_gather=8, reduce_scatter=8))
