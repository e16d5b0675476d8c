"""Activation checkpoints and FSDP units around each other: what is gathered, and how often."""

from __future__ import annotations

import pytest
import torch
from blocks import HIDDEN, INPUT, Blocks, D, L, checkpointed, measure_third
from mistakes import caught
from models import Net16, net16_batch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from pytest_shardcheck import collectives

pytestmark = pytest.mark.world_size(2)


# Recomputation is part of a layer's backward, where it is whole already: no gather more.
@pytest.mark.collectives(all_gather=2 * L, reduce_scatter=L)
@pytest.mark.collectives(all_gather=L, phase="forward")
@pytest.mark.saved_activations(bytes=L * INPUT + HIDDEN)
def test_under_fsdp2_nothing_is_gathered_twice(device_mesh, shardcheck):
    model = Blocks(checkpointed)
    for unit in [*model.blocks, model]:
        fully_shard(unit, mesh=device_mesh, reshard_after_forward=True)
    measure_third(shardcheck, model)


class Layer(nn.Module):
    """A parameter of its own around two units."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(D))
        self.attention, self.mlp = nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, hidden):
        return self.mlp(self.attention(hidden * self.scale))


# Four layers of three units and the root, which stays whole between forward and backward (A16,
# pytorch PR 175406: attention was gathered twice in a checkpointed layer's backward).
@pytest.mark.collectives(all_gather=4 * 3 + 1, phase="forward")
@pytest.mark.collectives(all_gather=4 * 3, reduce_scatter=4 * 3 + 1, phase="backward")
@pytest.mark.parametrize("call", [None, checkpointed], ids=["plain", "checkpointed"])
def test_nested_units_are_gathered_once_in_backward(call, device_mesh, shardcheck):
    blocks = Blocks(call, Layer)
    model = nn.Sequential(nn.Linear(D, D), blocks)  # the root's own parameters
    for layer in blocks.blocks:
        for unit in (layer.attention, layer.mlp, layer):
            fully_shard(unit, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    measure_third(shardcheck, model)


# Case A15 (pytorch #105635, fairscale #777): a checkpoint around a unit, or a unit around it.


def fsdp1(module, _):
    return FullyShardedDataParallel(module, device_id="cpu")


def fsdp2(module, mesh):
    return fully_shard(module, mesh=mesh)


def placed(shard, mesh, *, outside, implementation=CheckpointImpl.NO_REENTRANT):
    model = Net16()
    for number, block in enumerate(model.blocks):
        if outside:
            unit = shard(block, mesh)
            model.blocks[number] = checkpoint_wrapper(unit, checkpoint_impl=implementation)
        else:
            wrapped = checkpoint_wrapper(block, checkpoint_impl=implementation)
            model.blocks[number] = shard(wrapped, mesh)
    return shard(model, mesh)


def train(model):
    model(net16_batch()).sum().backward()


# Three blocks, and the root, which stays whole: no order gathers more.
ONCE = collectives(all_gather=3, reduce_scatter=4, phase="backward")


@pytest.mark.collectives(all_gather=4, phase="forward")
@pytest.mark.parametrize("outside", [False, True], ids=["unit-around-it", "around-the-unit"])
@pytest.mark.parametrize("shard", [fsdp1, fsdp2])
def test_a15_the_order_does_not_matter(shard, outside, device_mesh, shardcheck):
    reading = measure_third(shardcheck, placed(shard, device_mesh, outside=outside), train)
    shardcheck.check(reading, ONCE)


# But for reentrant around FSDP1, whose recomputation is a forward that reshards.
@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint:FutureWarning")
def test_a15_reentrant_around_a_unit_gathers_twice(device_mesh, shardcheck):
    reentrant = CheckpointImpl.REENTRANT
    right = placed(fsdp1, device_mesh, outside=False, implementation=reentrant)
    shardcheck.check(measure_third(shardcheck, right, train), ONCE)
    wrong = placed(fsdp1, device_mesh, outside=True, implementation=reentrant)
    with caught("6 calls, 3 more", "backward in blocks.2._checkpoint_wrapped_module"):
        shardcheck.check(measure_third(shardcheck, wrong, train), ONCE)
