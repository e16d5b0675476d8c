"""Forwards without a backward: nothing is saved, and what FSDP gathers it must let go of.

M8 has P = 2,105,344 B, a layer U = P / 8; X = 32,768 B is the batch, and each layer's output.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import m8, m8_batch
from steps import P
from torch.distributed.fsdp import fully_shard

from pytest_shardcheck import max_memory, memory, saved_activations

U = P // 8
X = 32 * 256 * 4

pytestmark = pytest.mark.world_size(2)
WITHOUT = pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])


def infer(shardcheck, model, without):
    """Measure a forward after another; its output does not outlive it."""

    def forward():
        with without():
            model(m8_batch())

    forward()
    with shardcheck.measure(model) as measurement:
        forward()
    return measurement.reading


# The batch, a layer's input and its output.
@WITHOUT
@pytest.mark.memory(peak=P + 3 * X, params=P, grads=0, growth=0)
@pytest.mark.saved_activations(count=0, packed=0)
@pytest.mark.collectives
def test_nothing_is_saved(without, process_group, shardcheck):
    infer(shardcheck, m8(), without)


# Evaluation mode is for dropout and batch norm: autograd saves each layer's input all the same.
@pytest.mark.parametrize("mode", [torch.nn.Module.train, torch.nn.Module.eval])
def test_eval_is_not_no_grad(mode, process_group, shardcheck):
    nothing, peak = saved_activations(count=0, bytes=0), max_memory(P + 3 * X)
    right = infer(shardcheck, mode(m8()), torch.no_grad)
    shardcheck.check(right, nothing)
    shardcheck.check(right, peak)
    wrong = infer(shardcheck, mode(m8()), torch.enable_grad)
    with caught("saved_activations(count): 0 tensors were expected", "8 tensors, 8 more"):
        shardcheck.check(wrong, nothing)
    with caught("saved_activations(bytes): 0 B was expected", "262,144 B", "7 32,768 B"):
        shardcheck.check(wrong, nothing)
    with caught("max_memory(peak): the ceiling", "saved activations 262,144 B"):
        shardcheck.check(wrong, peak)


# A sum of losses that nobody detached keeps the graph of every batch.
def test_a_sum_of_losses_keeps_every_graph(process_group, shardcheck):
    model = m8()

    def evaluate():
        total = torch.zeros(())
        with shardcheck.measure(model) as measurement:
            for _ in range(3):
                total = total + model(m8_batch()).mean()
        return measurement.reading

    with torch.no_grad():
        shardcheck.check(evaluate(), max_memory(growth=0))
    wrong = evaluate()
    with caught(f"{3 * 8 * X:,} B above", "3 x 32,768 B float32 [32, 256] saved activations, in 6"):
        shardcheck.check(wrong, max_memory(growth=0))
    with caught("24 tensors, 24 more"):
        shardcheck.check(wrong, saved_activations(count=0))


def sharded(mesh, *, reshard):
    model = m8()
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return model


# A whole layer, its gather buffer and that of the layer before it; the batch and a layer's input;
# the mesh's list of ranks.
@WITHOUT
@pytest.mark.world_size(2, 4)
@pytest.mark.memory({2: P // 2 + 3 * U + 2 * X + 2 * 4, 4: P // 4 + 3 * U + 2 * X + 4 * 4})
@pytest.mark.memory(params={2: P // 2, 4: P // 4}, growth=0)
@pytest.mark.collectives(all_gather=8)
@pytest.mark.saved_activations(count=0)
def test_fsdp2_that_reshards(without, device_mesh, shardcheck):
    infer(shardcheck, sharded(device_mesh, reshard=True), without)


# Case A5 (pytorch #149029): no backward comes to reshard what forward left whole.
@pytest.mark.world_size(2, 4)
def test_a5_fsdp2_that_does_not_reshard_stays_whole(device_mesh, shardcheck, world):
    shard = memory(params=P // world.size)
    shardcheck.check(infer(shardcheck, sharded(device_mesh, reshard=True), torch.no_grad), shard)
    model = sharded(device_mesh, reshard=False)
    with shardcheck.measure(model) as first, torch.no_grad():
        model(m8_batch())
    with caught("left behind", "262,144 B float32 [65536] unsharded parameters, in 0 at"):
        shardcheck.check(first.reading, max_memory(growth=0))
    wrong = infer(shardcheck, model, torch.no_grad)
    with caught(f"params {P + P // world.size:,} B"):
        shardcheck.check(wrong, shard)
    assert wrong.collectives.total.count == 0  # it is whole: nothing is left to gather
    for layer in model:
        layer.reshard()
    with shardcheck.measure(model) as resharded:
        pass
    shardcheck.check(resharded.reading, shard)
