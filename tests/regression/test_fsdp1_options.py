"""FSDP1: no_sync, mixed precision, original parameters, checkpointing and offload."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from mistakes import caught
from models import Net16, m8, net16_batch
from steps import P, measure_third, step
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim import SGD, AdamW
from wrapped_fsdp import fsdp1_m8

from pytest_shardcheck import collectives, max_collectives, memory

U = P // 8

pytestmark = pytest.mark.world_size(2)


def measured(shardcheck, model):
    return measure_third(shardcheck, model, AdamW(model.parameters())).reading


def accumulated(shardcheck, *, quiet):
    """Measure three micro-batches, of which the first `quiet` don't synchronise."""
    model = fsdp1_m8()
    for _ in range(2):
        model.zero_grad()
        with shardcheck.measure(model, region="accumulated") as reading:
            for number in range(3):
                with model.no_sync() if number < quiet else nullcontext():
                    model(torch.randn(32, 256)).sum().backward()
    return reading


SYNC_ONCE = collectives(all_gather=3 * 16, reduce_scatter=8)


# All gradients are whole until the last micro-batch: a quarter of DDP's state (A3,
# pytorch #160320).
@pytest.mark.memory(grads=P // 2)
@pytest.mark.collectives(all_gather=3 * 16, reduce_scatter=8)
def test_no_sync(process_group, shardcheck):
    reading = accumulated(shardcheck, quiet=2)
    assert reading.memory.at_peak["gradients"] >= P


def test_no_sync_is_left_on(process_group, shardcheck):
    shardcheck.check(accumulated(shardcheck, quiet=2), SYNC_ONCE, memory(grads=P // 2))
    reading = accumulated(shardcheck, quiet=3)
    with caught("collectives(reduce_scatter): 8 calls were expected", "0 calls, 8 fewer"):
        shardcheck.check(reading, SYNC_ONCE)
    with caught("memory(grads): 1,052,672 B", "grads 2,105,344 B"):
        shardcheck.check(reading, memory(grads=P // 2))


def test_no_sync_is_forgotten(process_group, shardcheck):
    reading = accumulated(shardcheck, quiet=0)
    with caught("24 calls, 16 more", "x reduce_scatter of float32 [65792] (263,168 B)", "backward"):
        shardcheck.check(reading, SYNC_ONCE)


REDUCE_FP32 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
REDUCE_BF16 = MixedPrecision(param_dtype=torch.bfloat16)


# Two gathers of P/2, one reduction of P or P/2, layers' inputs in bf16, state in fp32.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4})
@pytest.mark.saved_activations(bytes=8 * 32 * 256 * 2)
@pytest.mark.parametrize(
    ("precision", "reduced"),
    [pytest.param(REDUCE_FP32, P, id="fp32"), pytest.param(REDUCE_BF16, P // 2, id="bf16")],
)
def test_mixed_precision(precision, reduced, process_group, shardcheck):
    calls = measured(shardcheck, fsdp1_m8(mixed_precision=precision)).collectives
    assert (calls["all_gather"].bytes, calls["reduce_scatter"].bytes) == (P, reduced)


def test_mixed_precision_is_forgotten(process_group, shardcheck):
    right = max_collectives(bytes={"all_gather": P})
    reading = measured(shardcheck, fsdp1_m8(mixed_precision=REDUCE_FP32))
    shardcheck.check(reading, right)
    with caught("4,210,688 B", "8 x all_gather of float32"):
        shardcheck.check(measured(shardcheck, fsdp1_m8()), right)


# `param_dtype` alone reduces in bf16 too. It is less of everything: an exact figure tells.
@pytest.mark.parametrize("precision", [REDUCE_FP32, REDUCE_BF16], ids=["fp32", "bf16"])
def test_reducing_in_fp32_is_forgotten(precision, process_group, shardcheck):
    right = memory(peak=4_934_180, phase="backward")
    reading = measured(shardcheck, fsdp1_m8(mixed_precision=precision))
    if precision is REDUCE_FP32:
        shardcheck.check(reading, right)
        return
    with caught("4,539,428 B", "131,584 B bfloat16 [65792]"):
        shardcheck.check(reading, right)


# A flat parameter of 65,792 numbers is cut in two: the first rank has a part of the weight, the
# second the rest and the bias, and a step count for each that it has a part of.
@pytest.mark.memory(params=P // 2, grads=P // 2)
@pytest.mark.memory(optimizer=P + 8 * 4, rank=0)
@pytest.mark.memory(optimizer=P + 16 * 4, rank=1)
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
def test_original_parameters(process_group, shardcheck):
    measured(shardcheck, fsdp1_m8(use_orig_params=True))


# Original parameters stay the objects that they were; flat ones are new, and an optimizer that was
# built before has the old ones.
@pytest.mark.parametrize("original", [True, False], ids=["original", "flat"])
def test_the_optimizer_is_built_before_wrapping(original, process_group, shardcheck):
    model = m8()
    optimizer = SGD(model.parameters(), momentum=0.9)
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        use_orig_params=original,
        device_id="cpu",
    )
    with shardcheck.measure(model, optimizer) as reading:
        step(model, optimizer)
    right = memory(grads=P // 2, optimizer=P // 2)  # one momentum
    if original:
        shardcheck.check(reading, right)
        return
    with caught("optimizer 2,105,344 B", "2,105,344 B are parameters that no watched module has"):
        shardcheck.check(reading, right)


def checkpointed(shardcheck, implementation, *, outside):
    """Checkpoint Net16's blocks outside of their units, or inside."""
    model = Net16()
    for number, block in enumerate(model.blocks):
        if outside:
            unit = FullyShardedDataParallel(block, device_id="cpu")
            unit = checkpoint_wrapper(unit, checkpoint_impl=implementation)
        else:
            unit = checkpoint_wrapper(block, checkpoint_impl=implementation)
            unit = FullyShardedDataParallel(unit, device_id="cpu")
        model.blocks[number] = unit
    model = FullyShardedDataParallel(model, device_id="cpu")
    for _ in range(2):
        with shardcheck.measure(model) as reading:
            model(net16_batch()).sum().backward()
    return reading


# Recomputation is then part of a unit's backward, where it is whole already: two gathers a block,
# and one of the root, which stays whole.
INSIDE = collectives(all_gather=3 * 2 + 1, reduce_scatter=3 + 1)
each_implementation = pytest.mark.parametrize("implementation", list(CheckpointImpl))


@each_implementation
@pytest.mark.collectives(all_gather=3 * 2 + 1, reduce_scatter=3 + 1)
def test_checkpoints_inside_units(implementation, process_group, shardcheck):
    checkpointed(shardcheck, implementation, outside=False)


# pytorch #105635, fairscale #777 (A15): three gathers a block. Non-reentrant ones no longer do.
@each_implementation
def test_checkpoints_outside_units(implementation, process_group, shardcheck):
    reading = checkpointed(shardcheck, implementation, outside=True)
    if implementation is CheckpointImpl.NO_REENTRANT:
        shardcheck.check(reading, INSIDE)
        return
    with caught("collectives(all_gather): 7 calls were expected", "10 calls, 3 more"):
        shardcheck.check(reading, INSIDE)


def on_the_gpu(shardcheck, **options):
    model = FullyShardedDataParallel(
        m8(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cuda"),
        **options,
    )
    optimizer = AdamW(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        with shardcheck.measure(model, optimizer) as reading:
            model(torch.randn(32, 256, device="cuda")).sum().backward()
            optimizer.step()
    return reading


# It pins its shards, which takes an accelerator: there is no such run on the CPU alone.
@pytest.mark.cuda
@pytest.mark.world_size(2, device="cuda")
def test_offload(process_group, shardcheck):
    host = memory(params=P // 2, grads=P // 2, device="cpu")
    device = memory(params=0, grads=0, optimizer=0)
    reading = on_the_gpu(shardcheck, cpu_offload=CPUOffload(offload_params=True))
    shardcheck.check(reading, host, device)
    with caught("memory(params): 0 B was expected", "params 1,052,672 B, grads 1,052,672 B"):
        shardcheck.check(on_the_gpu(shardcheck), device)
