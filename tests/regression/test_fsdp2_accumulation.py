"""FSDP2 over three micro-batches: gradients that are not synchronised are whole, in no `.grad`.

Net16 has P = 8,192 B in four units: three blocks, which reshard after forward, and the root, which
does not. A micro-batch gathers 4 + 3 and reduces 4 times, or as often as it is told to (A17,
lingbot-vla PR 50).
"""

from __future__ import annotations

import pytest
from mistakes import caught
from models import net16_batch
from torch.optim import SGD
from wrapped_fsdp import fsdp2_net16

from pytest_shardcheck import collectives, memory

P = 8_192
MICRO_BATCHES = 3

pytestmark = pytest.mark.world_size(2)


def micro_batch(model):
    model(net16_batch()).sum().backward()


def accumulate(model, *, last_only, once=False):
    """Synchronise gradients in the last micro-batch only; `once`: gather in the first only, too."""
    for number in range(MICRO_BATCHES):
        last = number == MICRO_BATCHES - 1
        model.set_requires_gradient_sync(last or not last_only)
        model.set_is_last_backward(last)
        if once:
            model.set_reshard_after_forward(False)
            model.set_reshard_after_backward(last)
        micro_batch(model)


def measured(shardcheck, mesh, **options):
    model = fsdp2_net16(mesh)
    accumulate(model, **options)
    model.zero_grad()
    with shardcheck.measure(model) as reading:
        accumulate(model, **options)
    return reading


@pytest.mark.memory(grads=P // 2)
@pytest.mark.collectives(all_gather=3 * 7, reduce_scatter=3 * 4)
def test_each_micro_batch_is_synchronised(device_mesh, shardcheck):
    measured(shardcheck, device_mesh, last_only=False)


@pytest.mark.memory(grads=P // 2)
@pytest.mark.collectives(all_gather=3 * 7, reduce_scatter=4)
def test_only_the_last_is(device_mesh, shardcheck):
    measured(shardcheck, device_mesh, last_only=True)


@pytest.mark.memory(params=P // 2, grads=P // 2)
@pytest.mark.collectives(all_gather=4, reduce_scatter=4)
def test_and_parameters_are_gathered_once(device_mesh, shardcheck):
    measured(shardcheck, device_mesh, last_only=True, once=True)


# Between micro-batches each rank holds all gradients: what accumulation without sync costs.
@pytest.mark.memory(params=P // 2, grads=P)
@pytest.mark.collectives(all_gather=2 * 7)
def test_in_between_gradients_are_whole(device_mesh, shardcheck):
    model = fsdp2_net16(device_mesh)
    model.set_requires_gradient_sync(False)
    with shardcheck.measure(model):
        micro_batch(model)
        micro_batch(model)
    assert all(param.grad is None for param in model.parameters())


def test_no_sync_is_left_on(device_mesh, shardcheck):
    model = fsdp2_net16(device_mesh)
    optimizer = SGD(model.parameters())
    step = collectives(all_gather=7, reduce_scatter=4)
    for sync in (True, False):
        model.set_requires_gradient_sync(sync)
        optimizer.zero_grad()
        with shardcheck.measure(model, optimizer) as reading:
            micro_batch(model)
            optimizer.step()
        if sync:
            shardcheck.check(reading, memory(grads=P // 2), step)
    # The optimizer found no gradient, and the loss would tell only after a while.
    with caught("4,096 B (4.1 kB) was expected", "grads 8,192 B"):
        shardcheck.check(reading, memory(grads=P // 2))
    with caught("collectives(reduce_scatter): 4 calls were expected", "0 calls, 4 fewer"):
        shardcheck.check(reading, step)


def test_each_micro_batch_is_synchronised_by_mistake(device_mesh, shardcheck):
    right = collectives(all_gather=3 * 7, reduce_scatter=4)
    shardcheck.check(measured(shardcheck, device_mesh, last_only=True), right)
    reading = measured(shardcheck, device_mesh, last_only=False)
    with caught(
        "collectives(reduce_scatter): 4 calls", "12 calls, 8 more", "in blocks.2, blocks.1"
    ):
        shardcheck.check(reading, right)


def test_resharding_after_backward_is_left_off(device_mesh, shardcheck):
    model = fsdp2_net16(device_mesh)
    for reshard in (True, False):
        model.set_reshard_after_backward(reshard)
        with shardcheck.measure(model) as reading:
            micro_batch(model)
        if reshard:
            shardcheck.check(reading, memory(params=P // 2))
    with caught("memory(params): 4,096 B", f"params {P // 2 + P:,} B"):
        shardcheck.check(reading, memory(params=P // 2))
    with caught("left behind:", "unsharded parameters, in blocks.0.1"):
        shardcheck.check(reading, memory(growth=0))
