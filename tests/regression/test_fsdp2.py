"""FSDP2: each parameter stays a tensor of its own, sharded by rows; resharding tells 2 from 3."""

from __future__ import annotations

import pytest
from models import m8
from steps import P, measure_third
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

pytestmark = [
    pytest.mark.world_size(2, 4),
    pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4}),
    pytest.mark.memory(optimizer={2: P + 16 * 4, 4: P // 2 + 16 * 4}),
    pytest.mark.memory(state={2: 4_210_752, 4: 2_105_408}),
    # Beside the state lives the device mesh's list of ranks, 4 B each.
    pytest.mark.memory(live={2: 4_210_760, 4: 2_105_424}),
    pytest.mark.saved_activations(bytes=262_144),
]


def sharded(device_mesh, *, reshard):
    model = m8()
    for layer in model:
        fully_shard(layer, mesh=device_mesh, reshard_after_forward=reshard)
    return fully_shard(model, mesh=device_mesh, reshard_after_forward=reshard)


# The peak is where forward ends: all layers are whole, beside two gather buffers.
@pytest.mark.memory({2: 6_051_912, 4: 4_472_912})
@pytest.mark.memory({2: 6_051_912, 4: 4_472_912}, phase="forward")
@pytest.mark.collectives(all_gather=8, reduce_scatter=8)
def test_zero2(device_mesh, shardcheck):
    model = sharded(device_mesh, reshard=False)
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    assert reading.memory.at_peak["unsharded parameters"] == P


# The peak is in backward: one layer is whole, beside gather and reduce buffers.
@pytest.mark.memory({2: 5_131_344, 4: 3_157_592})
@pytest.mark.memory({2: 5_131_344, 4: 3_157_592}, phase="backward")
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
@pytest.mark.collectives(all_gather=8, phase="forward")
def test_zero3(device_mesh, shardcheck, world):
    model = sharded(device_mesh, reshard=True)
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    assert reading.memory.at_peak["unsharded parameters"] == P // 8
    # Rajbhandari et al. 2020, section 7: 3 P a step, of which a ring of N sends (N - 1) / N.
    assert reading.collectives.total.wire_bytes == 3 * P * (world.size - 1) // world.size
