"""FSDP1: ZeRO-2 and ZeRO-3 hold the same between steps and differ in when parameters are whole."""

from __future__ import annotations

import pytest
from models import m8
from steps import P, measure_third
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.optim import AdamW

ZERO2, ZERO3 = ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.FULL_SHARD

pytestmark = [
    pytest.mark.world_size(2, 4),
    pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4}),
    pytest.mark.saved_activations(bytes=262_144),
]


def per_layer(strategy):
    model = m8()
    for i, layer in enumerate(model):
        model[i] = FullyShardedDataParallel(layer, sharding_strategy=strategy, device_id="cpu")
    return FullyShardedDataParallel(model, sharding_strategy=strategy, device_id="cpu")


# Each of eight flat parameters has one step count. All layers are whole when backward begins.
@pytest.mark.memory(optimizer={2: P + 8 * 4, 4: P // 2 + 8 * 4})
@pytest.mark.memory(live={2: 4_210_720, 4: 2_105_376}, peak={2: 6_051_880, 4: 4_472_872})
@pytest.mark.collectives(all_gather=8, reduce_scatter=8)
def test_zero2(process_group, shardcheck, world):
    model = per_layer(ZERO2)
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    assert reading.memory.at_peak["unsharded parameters"] == P
    # As much as DDP's all-reduce.
    assert reading.collectives.total.wire_bytes == 2 * P * (world.size - 1) // world.size


# Two layers at most are whole: the one that computes and the one that is fetched ahead.
@pytest.mark.memory(optimizer={2: P + 8 * 4, 4: P // 2 + 8 * 4})
@pytest.mark.memory(live={2: 4_210_720, 4: 2_105_376}, peak={2: 5_065_768, 4: 3_092_008})
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
def test_zero3(process_group, shardcheck, world):
    model = per_layer(ZERO3)
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    assert reading.memory.at_peak["unsharded parameters"] == 2 * P // 8
    # Half as much again.
    assert reading.collectives.total.wire_bytes == 3 * P * (world.size - 1) // world.size


# One flat unit is its own root, which is never resharded after forward: both are ZeRO-2, and the
# peak shows that nothing is gained over it.
@pytest.mark.memory(optimizer={2: P + 4, 4: P // 2 + 4}, state={2: 4_210_692, 4: 2_105_348})
@pytest.mark.memory(peak={2: 9_506_828, 4: 7_927_820})
@pytest.mark.collectives(all_gather=1, reduce_scatter=1)
@pytest.mark.parametrize("strategy", [ZERO2, ZERO3], ids=["zero2", "zero3"])
def test_one_flat_unit(strategy, process_group, shardcheck):
    model = FullyShardedDataParallel(m8(), sharding_strategy=strategy, device_id="cpu")
    measure_third(shardcheck, model, AdamW(model.parameters()))
