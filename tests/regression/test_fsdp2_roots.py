"""FSDP2's units: the root, nested units, resharding to a smaller group."""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import net16_batch
from steps import P, measure_third
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW
from wrapped_fsdp import fsdp2_m8, fsdp2_net16

from pytest_shardcheck import collectives, max_collectives, memory

NET16 = 8_192  # three blocks and the root of 2,048 B each
U = P // 8


def measured(shardcheck, model, batch):
    """Measure the second step."""
    optimizer = SGD(model.parameters())
    for step in range(2):
        optimizer.zero_grad()
        with shardcheck.measure(model, optimizer, region=f"step {step}") as reading:
            model(batch()).sum().backward()
            optimizer.step()
    return reading


# A root stays whole until its backward by default: four gathers forward, three backward.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params={2: NET16 // 2, 4: NET16 // 4})
@pytest.mark.collectives(all_gather=4, phase="forward")
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            {}, id="default", marks=pytest.mark.collectives(all_gather=7, reduce_scatter=4)
        ),
        pytest.param(
            {"reshard_after_forward": True},
            id="explicit",
            marks=pytest.mark.collectives(all_gather=8, reduce_scatter=4),
        ),
    ],
)
def test_the_root(options, device_mesh, shardcheck):
    measured(shardcheck, fsdp2_net16(device_mesh, **options), net16_batch)


@pytest.mark.world_size(2)
def test_the_root_reshards_what_backward_begins_with(device_mesh, shardcheck):
    right = collectives(all_gather=3, phase="backward", ignore=("reduce_scatter",))
    shardcheck.check(measured(shardcheck, fsdp2_net16(device_mesh), net16_batch), right)
    model = fsdp2_net16(device_mesh, reshard_after_forward=True)
    reading = measured(shardcheck, model, net16_batch)
    with caught("3 calls were expected", "4 calls, 1 more", "in head, blocks.2.1"):
        shardcheck.check(reading, right)


# Two matrices of 1,024 B then are in no unit: whole on each rank, and nobody averages their
# gradients.
@pytest.mark.world_size(2)
def test_the_root_is_not_sharded(device_mesh, shardcheck):
    state = memory(params=NET16 // 2, grads=NET16 // 2)
    calls = collectives(all_gather=7, reduce_scatter=4)
    shardcheck.check(measured(shardcheck, fsdp2_net16(device_mesh), net16_batch), state, calls)
    reading = measured(shardcheck, fsdp2_net16(device_mesh, root=False), net16_batch)
    with caught("params 5,120 B, grads 5,120 B"):
        shardcheck.check(reading, state)
    with caught("4 calls were expected", "3 calls, 1 fewer", "in blocks.2, blocks.1, blocks.0 at"):
        shardcheck.check(reading, calls)


# The root of two matrices stays whole after forward: its shard and its 2,048 B (A5).
@pytest.mark.world_size(2)
@pytest.mark.memory(params=NET16 // 2, region="before")
@pytest.mark.memory(params=NET16 // 2 + 2_048, region="default")
@pytest.mark.memory(params=NET16 // 2, region="resharded")
def test_a5_root_stays_whole_after_no_grad_forward(device_mesh, shardcheck):
    model = fsdp2_net16(device_mesh)
    with shardcheck.measure(model, region="before"):
        pass
    with shardcheck.measure(model, region="default") as reading, torch.no_grad():
        model(net16_batch())
    with caught("memory(params): 4,096 B", "6,144 B (6.1 kB), 2,048 B (50.0 %) above"):
        shardcheck.check(reading, memory(params=NET16 // 2))
    with caught("left behind:", "2 x 1,024 B float32 [256] unsharded parameters, in FSDPNet16"):
        shardcheck.check(reading, memory(growth=0))
    with shardcheck.measure(model, region="resharded"):
        model.reshard()


@pytest.mark.world_size(2)
@pytest.mark.memory(params=NET16 // 2, growth=0)
def test_a5_root_that_reshards_is_a_shard_after_no_grad_forward(device_mesh, shardcheck):
    model = fsdp2_net16(device_mesh, reshard_after_forward=True)
    with shardcheck.measure(model), torch.no_grad():
        model(net16_batch())


class Block(nn.Module):
    """A matrix of its own around two units: 3 x 1,024 B."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(16, 16, bias=False) for _ in range(3))

    def forward(self, hidden):
        return self.down(self.up(self.gate(hidden)))


def nested(mesh, *, inner):
    model = nn.Sequential(Block(), Block())
    for block in model:
        for unit in (*((block.up, block.down) if inner else ()), block):
            fully_shard(unit, mesh=mesh)
    return fully_shard(model, mesh=mesh)


# Six units of 1,024 B, all gathered twice.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params={2: 3_072, 4: 1_536}, grads={2: 3_072, 4: 1_536})
@pytest.mark.collectives(all_gather=12, reduce_scatter=6)
@pytest.mark.max_collectives(largest=1_024)
def test_nested_units(device_mesh, shardcheck):
    measured(shardcheck, nested(device_mesh, inner=True), net16_batch)


# A unit has what no unit inside of it has.
@pytest.mark.world_size(2)
def test_inner_units_are_forgotten(device_mesh, shardcheck):
    right = max_collectives(largest=1_024)
    shardcheck.check(measured(shardcheck, nested(device_mesh, inner=True), net16_batch), right)
    reading = measured(shardcheck, nested(device_mesh, inner=False), net16_batch)
    with caught("the ceiling of 1,024 B", "3,072 B", "2 x all_gather of float32 [768] (3,072 B)"):
        shardcheck.check(reading, right)


# Each layer keeps half of itself between forward and backward and gathers that over two ranks: all
# such groups have one axis. A ring sends P (3/4 + 1/2 + 3/4).
@pytest.mark.world_size(4)
@pytest.mark.memory(state=2_105_408, peak=3_781_976)
@pytest.mark.collectives(all_gather=8, reduce_scatter=8, group="world")
@pytest.mark.collectives(all_gather=8, group="mesh_dim_1")
@pytest.mark.collectives(all_gather=8, group="mesh_dim_1", phase="backward")
def test_reshard_to_a_smaller_group(device_mesh, shardcheck):
    model = fsdp2_m8(device_mesh, reshard_after_forward=2)
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    assert reading.collectives.total.wire_bytes == 2 * P
    # Where forward ends: no gradients, seven layers by half, one whole beside two gather buffers,
    # each layer's input, and the mesh.
    forward = 2_105_408 - P // 4 + 7 * U // 2 + 3 * U + 262_144 + 4 * 4
    assert reading.phases["forward"].memory.peak == forward


@pytest.mark.world_size(4)
def test_resharding_to_a_smaller_group_is_forgotten(device_mesh, shardcheck):
    right = max_collectives(wire_bytes=2 * P)
    for reshard in (2, True):
        model = fsdp2_m8(device_mesh, reshard_after_forward=reshard)
        reading = measure_third(shardcheck, model, AdamW(model.parameters())).reading
        if reshard == 2:
            shardcheck.check(reading, right)
    with caught(
        "4,737,024 B", "8 x all_gather of float32 [65792] (263,168 B) in group 'world', back"
    ):
        shardcheck.check(reading, right)
