"""Activation checkpointing that saves nothing, trains nothing, or keeps what it saved."""

from __future__ import annotations

import pytest
import torch
from blocks import (
    HIDDEN,
    INPUT,
    INPUTS,
    PARAMETERS,
    B,
    Blocks,
    D,
    L,
    batch,
    checkpointed,
    measure_third,
    reentrant,
    step,
)
from mistakes import caught
from torch import nn

from pytest_shardcheck import max_memory, max_saved_activations, memory, saved_activations

pytestmark = pytest.mark.world_size(2)


class AsOne(Blocks):
    """One checkpoint around all blocks."""

    def forward(self, hidden):
        return checkpointed(super().forward, hidden)


# Case A18 (pytorch #147449, #78731). The end of forward looks wonderful: one input.
def test_a18_one_checkpoint_around_all_saves_nothing_at_the_peak(process_group, shardcheck):
    most = max_saved_activations(bytes=INPUTS + HIDDEN)
    shardcheck.check(measure_third(shardcheck, Blocks(checkpointed)), most)
    wrong = measure_third(shardcheck, AsOne())
    shardcheck.check(wrong, saved_activations(bytes=INPUT, phase="forward"))
    with caught(
        "655,360 B", "at the end of forward: 32,768 B", "blocks.0.1 131,072 B, blocks.1.1 131,072 B"
    ):
        shardcheck.check(wrong, most)


class Headed(nn.Module):
    """Blocks and a head of 257 parameters."""

    def __init__(self, call):
        super().__init__()
        self.body, self.head = Blocks(call), nn.Linear(D, 1)

    def forward(self, hidden):
        return self.head(self.body(hidden))


def step_of_data(model):
    """Train on what a data loader gives: it wants no gradient."""
    model.zero_grad()
    model(torch.randn(B, D)).sum().backward()


HEAD = 4 * (D + 1)
TRAINED = memory(grads=PARAMETERS + HEAD)


def test_a18_not_reentrant_trains_without_a_gradient_of_the_input(process_group, shardcheck):
    right = measure_third(shardcheck, Headed(checkpointed), step_of_data)
    shardcheck.check(right, TRAINED)


# Reentrant trains the head alone, and saves the head's input alone: an improvement, says a ceiling
# of saved bytes. Gradients say what it is.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
def test_a18_reentrant_without_a_gradient_of_the_input(process_group, shardcheck):
    wrong = measure_third(shardcheck, Headed(reentrant), step_of_data)
    shardcheck.check(wrong, max_saved_activations(bytes=INPUTS + HIDDEN))
    with caught("memory(grads)", f"params {PARAMETERS + HEAD:,} B, grads {HEAD:,} B"):
        shardcheck.check(wrong, TRAINED)
    with caught("saved_activations(count, phase='forward'): 5 tensors were expected", "1 tensor"):
        shardcheck.check(wrong, saved_activations(count=L + 1, phase="forward"))


# Without the head nothing wants a gradient at all: no ceiling holds over nothing.
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True:UserWarning")
def test_a18_nothing_saved_is_no_improvement(process_group, shardcheck):
    model = Blocks(reentrant)
    with shardcheck.measure(model) as measurement:
        assert not model(torch.randn(B, D)).requires_grad
    with caught("unmeasured", "bytes was 0 on every judged rank, so its ceiling held nothing back"):
        shardcheck.check(measurement.reading, max_saved_activations(bytes=INPUTS + HIDDEN))
    with caught("unmeasured", "grads was 0 on every judged rank"):
        shardcheck.check(measurement.reading, max_memory(grads=PARAMETERS))


# A list of losses keeps their graphs: of a checkpointed model the inputs, which the next step adds.
def test_a_list_of_losses_keeps_the_graphs(process_group, shardcheck):
    losses = []

    def hoards(model):
        model.zero_grad()
        loss = model(batch()).sum()
        loss.backward(retain_graph=True)
        losses.append(loss)

    right = measure_third(shardcheck, Blocks(checkpointed))
    shardcheck.check(right, max_memory(growth=0))
    wrong = measure_third(shardcheck, Blocks(checkpointed), hoards)
    with caught("left behind", "32,768 B float32 [32, 256] saved activations", "blocks.0"):
        shardcheck.check(wrong, max_memory(growth=0))


# Features that a hook collects: recomputation calls it again, in backward.
def test_a_hook_that_collects_outputs_collects_the_recomputed(process_group, shardcheck):
    model, features = Blocks(checkpointed), []
    model.blocks[0][0].register_forward_hook(lambda _, __, output: features.append(output.detach()))

    def collects(model):
        step(model)
        features.clear()

    shardcheck.check(measure_third(shardcheck, model, collects), max_memory(growth=0))
    wrong = measure_third(shardcheck, model)
    in_forward, in_backward = wrong.memory.grown
    assert in_forward.line != in_backward.line
    with caught("262,144 B above", "131,072 B float32 [32, 1024] temporaries, in blocks.0.0 at "):
        shardcheck.check(wrong, max_memory(growth=0))
