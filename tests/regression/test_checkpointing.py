"""Activation checkpointing: what is kept at the end of forward, and what recomputation brings back.

The figures of `blocks`: an input is b d, what a block saves beside it 4 b d.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from blocks import (
    HIDDEN,
    INPUT,
    INPUTS,
    WHOLE,
    Blocks,
    batch,
    block,
    checkpointed,
    measure_third,
    reentrant,
    step,
)
from mistakes import caught
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from pytest_shardcheck import max_memory, max_saved_activations, saved_activations

pytestmark = pytest.mark.world_size(2)


@pytest.mark.saved_activations(bytes=WHOLE)
@pytest.mark.memory(growth=0)
@pytest.mark.collectives  # a plain module does not communicate
def test_without(process_group, shardcheck):
    assert measure_third(shardcheck, Blocks()).saved.at_forward_end == WHOLE


# At backward's peak the inputs and one block's other activations (A19: not all of them).
@pytest.mark.saved_activations(bytes=INPUTS + HIDDEN)
@pytest.mark.saved_activations(bytes=INPUTS, count=4, phase="forward")
@pytest.mark.memory(growth=0)
@pytest.mark.parametrize("call", [checkpointed, reentrant])
def test_with(call, process_group, shardcheck):
    assert measure_third(shardcheck, Blocks(call)).saved.at_forward_end == INPUTS


class Halves(Blocks):
    """Two blocks under a checkpoint of their own, in which `call` runs each."""

    def forward(self, hidden):
        for first, second in (self.blocks[:2], self.blocks[2:]):
            hidden = checkpointed(
                lambda x, one=first, two=second: self.call(two, self.call(one, x)), hidden
            )
        return hidden


# Two inputs of halves; in backward also one block's input in the half, and that block's insides.
@pytest.mark.saved_activations(bytes=2 * INPUT + INPUT + HIDDEN)
@pytest.mark.saved_activations(bytes=2 * INPUT, phase="forward")
@pytest.mark.memory(growth=0)
def test_nested(process_group, shardcheck):
    measure_third(shardcheck, Halves(checkpointed))


# Recomputed without checkpoints inside, a half has two blocks' activations at once; forward saves
# as little as before.
def test_inner_checkpoints_are_forgotten(process_group, shardcheck):
    nested = max_saved_activations(bytes=2 * INPUT + INPUT + HIDDEN)
    shardcheck.check(measure_third(shardcheck, Halves(checkpointed)), nested)
    wrong = measure_third(shardcheck, Halves(nn.Module.__call__))
    shardcheck.check(wrong, saved_activations(bytes=2 * INPUT, phase="forward"))
    with caught(
        f"{2 * INPUT + INPUT + 2 * HIDDEN:,} B", "at the end of forward: 65,536 B", "131,072 B"
    ):
        shardcheck.check(wrong, nested)


# Case A21 (pytorch #115255): hooks that do nothing, in a checkpoint. Nothing is left behind; but
# hooks of another take what they are around out of a checkpoint that is not reentrant.
class Hooked(nn.Sequential):
    def forward(self, hidden):
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            return super().forward(hidden)


def hooked():
    return Hooked(*block())


@pytest.mark.memory(growth=0)
@pytest.mark.saved_activations(bytes=INPUTS + HIDDEN)
def test_a21_hooks_in_a_reentrant_checkpoint(process_group, shardcheck):
    measure_third(shardcheck, Blocks(reentrant, hooked))


@pytest.mark.memory(growth=0)
def test_a21_hooks_in_a_checkpoint(process_group, shardcheck):
    reading = measure_third(shardcheck, Blocks(checkpointed, hooked))
    with caught("655,360 B", "at the end of forward: 655,360 B", "blocks.0.1 131,072 B"):
        shardcheck.check(reading, max_saved_activations(bytes=INPUTS + HIDDEN))


# Selective: what the policy keeps is in no hook, so autograd "saves" the inputs alone, and only the
# live counter has the rest. Measured over a forward whose output is held.


def forward_alone(shardcheck, model):
    step(model)
    given = batch()
    with shardcheck.measure(model) as measurement:
        output = model(given)
    output.sum().backward()
    return measurement.reading


def keeping(*, hidden):
    """Keep the second layer's output, or the first's too."""

    def policy(_, operator, *args, **options):
        if operator is torch.ops.aten.addmm.default and (hidden or args[1].shape[1] == 1024):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return partial(checkpointed, context_fn=partial(create_selective_checkpoint_contexts, policy))


@pytest.mark.memory(growth=INPUTS)  # each block's output, which is the next one's input
@pytest.mark.saved_activations(bytes=INPUTS)
def test_selective_keeps_outputs(process_group, shardcheck):
    forward_alone(shardcheck, Blocks(keeping(hidden=False)))


# A policy that keeps both products keeps the first layer's output for ReLU's: nothing is won.
def test_selective_that_keeps_all_products(process_group, shardcheck):
    plain = forward_alone(shardcheck, Blocks())
    assert plain.memory.growth == WHOLE
    wrong = forward_alone(shardcheck, Blocks(keeping(hidden=True)))
    shardcheck.check(wrong, saved_activations(bytes=INPUTS))  # no hook sees the rest
    with caught("655,360 B", "left behind", "131,072 B float32 [32, 1024]", "in blocks.0.0 at"):
        shardcheck.check(wrong, max_memory(growth=INPUTS))


class OnCpu(Blocks):
    def forward(self, hidden):
        with save_on_cpu():
            return super().forward(hidden)


# On the CPU what is saved is there already: save_on_cpu keeps the tensors themselves.
@pytest.mark.saved_activations(bytes=WHOLE)
@pytest.mark.memory(growth=0)
def test_save_on_cpu_saves_nothing_on_the_cpu(process_group, shardcheck):
    reading = measure_third(shardcheck, OnCpu())
    without = measure_third(shardcheck, Blocks())
    assert reading.memory.peak == without.memory.peak
    with caught(f"{WHOLE:,} B", "by module: blocks.0.1 131,072 B"):
        shardcheck.check(reading, max_saved_activations(bytes=INPUT))


# On a GPU the copies lie on the host, and the device keeps the output alone. CPU-only machines
# have no second device to tell them apart.
@pytest.mark.world_size(2, device="cuda")
@pytest.mark.memory(growth=INPUT)
@pytest.mark.memory(growth=WHOLE, device="cpu")
def test_save_on_cpu_of_a_gpu(process_group, world, shardcheck):
    model = OnCpu().to(world.device)
    given = batch().to(world.device)
    with shardcheck.measure(model) as measurement:
        output = model(given)
    shardcheck.check(measurement.reading, saved_activations(bytes=WHOLE))
    output.sum().backward()
