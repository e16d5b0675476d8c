"""FSDP2: each parameter stays a tensor of its own, sharded by rows; resharding tells 2 from 3.

M8 has P = 2,105,344 B in eight layers of U = P/8. Units, their number and the root change neither
its state nor what autograd saves, only when layers are whole: the peak and the calls tell.
"""

from __future__ import annotations

import pytest
from mistakes import caught
from steps import P, measure_third
from torch.optim import AdamW
from wrapped_fsdp import fsdp2_m8

from pytest_shardcheck import collectives, max_memory

U = P // 8

pytestmark = [
    pytest.mark.world_size(2, 4),
    pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4}),
    pytest.mark.memory(optimizer={2: P + 16 * 4, 4: P // 2 + 16 * 4}),
    pytest.mark.memory(state={2: 4_210_752, 4: 2_105_408}),
    # Beside the state lives the device mesh's list of ranks, 4 B each.
    pytest.mark.memory(live={2: 4_210_760, 4: 2_105_424}),
    pytest.mark.saved_activations(bytes=262_144),
]


def measured(shardcheck, model):
    return measure_third(shardcheck, model, AdamW(model.parameters())).reading


# The peak is where forward ends: all layers are whole, beside two gather buffers.
@pytest.mark.memory({2: 6_051_912, 4: 4_472_912})
@pytest.mark.memory({2: 6_051_912, 4: 4_472_912}, phase="forward")
@pytest.mark.collectives(all_gather=8, reduce_scatter=8)
def test_zero2(device_mesh, shardcheck):
    model = fsdp2_m8(device_mesh, reshard_after_forward=False)
    reading = measured(shardcheck, model)
    assert reading.memory.at_peak["unsharded parameters"] == P


# The peak is in backward: one layer is whole, beside gather and reduce buffers. A root without
# parameters of its own has nothing to keep: its default is the same.
@pytest.mark.memory({2: 5_131_344, 4: 3_157_592})
@pytest.mark.memory({2: 5_131_344, 4: 3_157_592}, phase="backward")
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
@pytest.mark.collectives(all_gather=8, phase="forward")
@pytest.mark.parametrize("reshard", [True, None], ids=["explicit", "default"])
def test_zero3(reshard, device_mesh, shardcheck, world):
    reading = measured(shardcheck, fsdp2_m8(device_mesh, reshard_after_forward=reshard))
    assert reading.memory.at_peak["unsharded parameters"] == U
    # Rajbhandari et al. 2020, section 7: 3 P a step, of which a ring of N sends (N - 1) / N.
    assert reading.collectives.total.wire_bytes == 3 * P * (world.size - 1) // world.size


ZERO3 = collectives(all_gather=16, reduce_scatter=8)
ZERO3_PEAK = max_memory({2: "5.2 MB", 4: "3.2 MB"})


@pytest.mark.world_size(2)
def test_resharding_is_forgotten(device_mesh, shardcheck):
    reading = measured(shardcheck, fsdp2_m8(device_mesh))
    shardcheck.check(reading, ZERO3_PEAK, ZERO3)
    reading = measured(shardcheck, fsdp2_m8(device_mesh, reshard_after_forward=False))
    whole = "262,144 B float32 [65536] unsharded parameters, in"
    with caught("6,051,912 B", "unsharded parameters 2,105,344 B", f"{whole} 0", f"{whole} 5"):
        shardcheck.check(reading, ZERO3_PEAK)
    with caught("collectives(all_gather): 16 calls were expected", "8 calls, 8 fewer", "forward"):
        shardcheck.check(reading, ZERO3)


# One unit is gathered and reduced at once: its buffers are as large as the model.
@pytest.mark.world_size(2)
@pytest.mark.parametrize("reshard", [True, None], ids=["explicit", "default"])
def test_layers_are_not_wrapped(reshard, device_mesh, shardcheck):
    reading = measured(shardcheck, fsdp2_m8(device_mesh))
    shardcheck.check(reading, ZERO3_PEAK, ZERO3)
    model = fsdp2_m8(device_mesh, layers=False, reshard_after_forward=reshard)
    reading = measured(shardcheck, model)
    with caught("8,455,248 B", "2,105,344 B float32 [526336] communication buffers"):
        shardcheck.check(reading, ZERO3_PEAK)
    with caught("1 x reduce_scatter of float32 [526336] (2,105,344 B)", "1 call, 7 fewer"):
        shardcheck.check(reading, ZERO3)


# Each layer is then a root, which stays whole after forward by default, and with no common root
# nobody waits for a reduce-scatter before the next one: all their inputs are held at once (A28).
@pytest.mark.world_size(2)
@pytest.mark.parametrize(("reshard", "peak"), [(True, 6_513_232), (None, 6_514_256)])
def test_the_root_is_not_sharded(reshard, peak, device_mesh, shardcheck):
    reading = measured(shardcheck, fsdp2_m8(device_mesh))
    shardcheck.check(reading, ZERO3_PEAK, ZERO3)
    reading = measured(shardcheck, fsdp2_m8(device_mesh, root=False, reshard_after_forward=reshard))
    held = "263,168 B float32 [65792] communication buffers, in"
    with caught(f"{peak:,} B", f"{held} 7", f"{held} 4", f"{held} 1"):
        shardcheck.check(reading, ZERO3_PEAK)
    if not reshard:
        with caught("collectives(all_gather): 16 calls", "8 calls, 8 fewer"):
            shardcheck.check(reading, ZERO3)
