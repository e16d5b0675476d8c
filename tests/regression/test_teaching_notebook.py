"""The exercises of the notebook behind the figures: predict by the closed form, then measure."""

from __future__ import annotations

import pytest
from models import m8
from steps import measure_third
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
from torch.optim import AdamW
from wrapped import ddp, zero1

from pytest_shardcheck import expect

PARAMS = 526_336


def zero2(model):
    strategy = ShardingStrategy.SHARD_GRAD_OP
    model = FullyShardedDataParallel(model, sharding_strategy=strategy, device_id="cpu")
    return model, AdamW(model.parameters())


def zero3(model):
    model = FullyShardedDataParallel(model, device_id="cpu")
    return model, AdamW(model.parameters())


def configuration(stage, build):
    predicted = pytest.mark.memory(state=expect.zero(stage=stage, params=PARAMS), tolerance="1%")
    return pytest.param(build, id=build.__name__, marks=predicted)


# Between steps FSDP1 has ZeRO-2's parameters sharded, too.
@pytest.mark.world_size(2, 4)
@pytest.mark.parametrize(
    "build",
    [
        configuration(0, ddp),
        configuration(1, zero1),
        configuration(3, zero2),
        configuration(3, zero3),
    ],
)
def test_bytes_per_rank_and_on_the_machine(build, process_group, shardcheck, world):
    reading = measure_third(shardcheck, *build(m8()))
    machine = sum(each.memory.state for each in shardcheck.gather(reading))
    if build is ddp:
        assert machine == world.size * reading.memory.state  # grows with the world
    if build is zero3:
        assert machine == pytest.approx(16 * PARAMS, rel=0.0001)  # does not
