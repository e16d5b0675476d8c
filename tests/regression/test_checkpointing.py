"""Activation checkpointing: what is kept at the end of forward, and what recomputation brings back.

L = 4 blocks d -> 4d -> d with ReLU, batch b = 32, d = 256, fp32. A block saves its input (b d), the
ReLU's output for itself and for the second layer (one tensor of 4 b d): 20 L b d = 655,360 B.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

L, B, D = 4, 32, 256
CLOSED_FORM = 20 * L * B * D
INPUTS = 4 * L * B * D  # all that checkpointing keeps

pytestmark = pytest.mark.world_size(2)


class Blocks(nn.Module):
    def __init__(self, *, checkpointed=False, reentrant=False):
        super().__init__()
        self.checkpointed, self.reentrant = checkpointed, reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D)) for _ in range(L)
        )

    def forward(self, hidden):
        for block in self.blocks:
            if self.checkpointed:
                hidden = checkpoint(block, hidden, use_reentrant=self.reentrant)
            else:
                hidden = block(hidden)
        return hidden


def step_of(model):
    batch = torch.randn(B, D, requires_grad=True)
    model(batch).sum().backward()


@pytest.mark.saved_activations(bytes=CLOSED_FORM)
@pytest.mark.collectives  # a plain module does not communicate
def test_without(process_group, shardcheck):
    model = Blocks()
    with shardcheck.measure(model) as reading:
        step_of(model)
    assert reading.saved.at_forward_end == CLOSED_FORM


# At backward's peak the inputs and one block's other activations.
@pytest.mark.saved_activations(bytes=INPUTS + 16 * B * D)
@pytest.mark.saved_activations(bytes=INPUTS, phase="forward")
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_with(reentrant, process_group, shardcheck):
    model = Blocks(checkpointed=True, reentrant=reentrant)
    with shardcheck.measure(model) as reading:
        step_of(model)
    assert reading.saved.at_forward_end == INPUTS


# Recomputation is part of a layer's backward, where it is whole already: no gather more.
@pytest.mark.collectives(all_gather=8, reduce_scatter=4)
@pytest.mark.collectives(all_gather=4, phase="forward")
def test_under_fsdp2_nothing_is_gathered_twice(device_mesh, shardcheck):
    model = Blocks(checkpointed=True)
    for block in model.blocks:
        fully_shard(block, mesh=device_mesh, reshard_after_forward=True)
    fully_shard(model, mesh=device_mesh, reshard_after_forward=True)
    for _ in range(2):
        step_of(model)
    with shardcheck.measure(model):
        step_of(model)


class Layer(nn.Module):
    """A parameter of its own around two units."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(D))
        self.attention, self.mlp = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, hidden):
        return self.mlp(self.attention(hidden * self.scale))


# Three layers of three units and the root, which stays whole between forward and backward (A16,
# pytorch PR 175406: attention was gathered twice in a checkpointed layer's backward).
@pytest.mark.collectives(all_gather=3 * 3 + 1, phase="forward")
@pytest.mark.collectives(all_gather=3 * 3, reduce_scatter=3 * 3 + 1, phase="backward")
@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
def test_nested_units_are_gathered_once_in_backward(checkpointed, device_mesh, shardcheck):
    model = Blocks(checkpointed=checkpointed)
    model.blocks = nn.ModuleList(Layer() for _ in range(3))
    model = nn.Sequential(nn.Linear(D, D), model)  # the root's own parameters
    for layer in model[1].blocks:
        for unit in (layer.attention, layer.mlp, layer):
            fully_shard(unit, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    for _ in range(2):
        step_of(model)
    with shardcheck.measure(model):
        step_of(model)
