"""Accelerate owns wrapping, accumulation and backward: unchanged in ranks, it finds our variables.

On the CPU it wraps in DDP; its FSDP plugin is for GPUs, and is passed over without a word.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import m8, m8_batch
from steps import P
from torch.optim import AdamW

from pytest_shardcheck import collectives, max_memory, memory

MOMENTS = 2 * P + 16 * 4


def prepared(**options):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model = m8()
    return accelerator, *accelerator.prepare(model, AdamW(model.parameters()))


def step(accelerator, model, optimizer):
    optimizer.zero_grad()
    accelerator.backward(model(m8_batch()).sum())
    optimizer.step()


# What DDP has: its buckets are a second copy of the gradients, and it calls once for each.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=P, grads=P, optimizer=MOMENTS, live=5 * P + 64, growth=0)
@pytest.mark.collectives(all_reduce=2)
@pytest.mark.saved_activations(bytes=8 * 32 * 256 * 4, count=8)
def test_a_step(shardcheck):
    parts = prepared()
    for _ in range(2):
        step(*parts)
    with shardcheck.measure(*parts[1:]):
        step(*parts)


# A35: `no_sync` must hold the forward too, where DDP decides; around the backward only it does
# nothing, and each micro-batch pays for a whole reduction.
@pytest.mark.world_size(2)
def test_accumulation_that_syncs_on_each_micro_batch(shardcheck):
    accelerator, model, optimizer = prepared(gradient_accumulation_steps=4)
    for _ in range(2):
        step(accelerator, model, optimizer)
    once = collectives(all_reduce=2)
    with shardcheck.measure(model, optimizer, region="accumulate") as right:
        for _ in range(4):
            with accelerator.accumulate(model):
                step(accelerator, model, optimizer)
    shardcheck.check(right, once)
    with shardcheck.measure(model, optimizer, region="backward only") as wrong:
        for last in (False, False, False, True):
            loss = model(m8_batch()).sum()
            with accelerator.no_sync(model) if not last else torch.enable_grad():
                loss.backward()
    with caught("collectives(all_reduce)", "8", "test_accelerate.py"):
        shardcheck.check(wrong, once)


# FSDP was asked for, by the plugin, and the state is whole.
@pytest.mark.world_size(2)
def test_an_fsdp_plugin_that_does_nothing(shardcheck):
    accelerate = pytest.importorskip("accelerate")
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)
    parts = prepared(fsdp_plugin=plugin)
    with shardcheck.measure(*parts[1:]) as reading:
        step(*parts)
    shardcheck.check(reading, memory(state=4 * P + 64))
    with caught("max_memory(state)", f"params {P:,} B", f"optimizer {MOMENTS:,} B"):
        shardcheck.check(reading, max_memory(state=2 * P + 64))


# The plugin at work, which needs a GPU for each rank.
@pytest.mark.world_size(2, device="cuda")
@pytest.mark.memory(state=2 * P + 64)
def test_the_fsdp_plugin(shardcheck):
    accelerate = pytest.importorskip("accelerate")
    plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = accelerate.Accelerator(fsdp_plugin=plugin)
    model = m8()
    model, optimizer = accelerator.prepare(model, AdamW(model.parameters()))
    with shardcheck.measure(model, optimizer):
        accelerator.backward(model(m8_batch().to(accelerator.device)).sum())
        optimizer.step()


# A loss that was not detached, or even one that was: each step leaves its 4 B.
@pytest.mark.world_size(2)
def test_losses_that_are_kept_for_a_report(shardcheck):
    accelerator, model, optimizer = prepared()
    step(accelerator, model, optimizer)
    with shardcheck.measure(model, optimizer, region="right") as right:
        step(accelerator, model, optimizer)
    kept = []
    with shardcheck.measure(model, optimizer, region="kept") as wrong:
        for _ in range(2):
            optimizer.zero_grad()
            loss = model(m8_batch()).sum()
            kept.append(loss)
            accelerator.backward(loss)
            optimizer.step()
    shardcheck.check(right, memory(growth=0))
    with caught("memory(growth)", "8 B", "test_accelerate.py"):
        shardcheck.check(wrong, memory(growth=0))
