"""State at rest per rank of M8 with AdamW: every number of the table in the README, to the byte.

P = 526,336 parameters x 4 B = 2,105,344 B. AdamW keeps two moments per parameter and a step count
of 4 B per parameter tensor, of which M8 has 16 (8 weights, 8 biases).
"""

from __future__ import annotations

import pytest
from models import m8, m8_batch, train_measured
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

P = 2_105_344

pytestmark = pytest.mark.world_size(2, 4)


@pytest.mark.memory(params=P, grads=P, optimizer=2 * P + 16 * 4)  # nothing is sharded
@pytest.mark.memory(state=8_421_440)
def test_ddp(process_group, shardcheck):
    model = DistributedDataParallel(m8())
    train_measured(shardcheck, model, AdamW(model.parameters()), m8_batch())


# Each parameter's moments and step count have one owner; M8's owners are equal: 16/N tensors each.
@pytest.mark.memory(params=P, grads=P, optimizer={2: P + 8 * 4, 4: P // 2 + 4 * 4})
@pytest.mark.memory(state={2: 6_316_064, 4: 5_263_376})
def test_zero1(process_group, shardcheck):
    model = DistributedDataParallel(m8())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    train_measured(shardcheck, model, optimizer, m8_batch())


# One flat parameter, its gradient and both moments divided by N, and its one step count. Between
# steps ZeRO-2 holds what ZeRO-3 does: they differ in when the parameters are whole.
@pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4})
@pytest.mark.memory(optimizer={2: P + 4, 4: P // 2 + 4}, state={2: 4_210_692, 4: 2_105_348})
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(ShardingStrategy.SHARD_GRAD_OP, id="zero2"),
        pytest.param(ShardingStrategy.FULL_SHARD, id="zero3"),
    ],
)
def test_fsdp1(strategy, process_group, shardcheck):
    model = FullyShardedDataParallel(m8(), sharding_strategy=strategy, device_id="cpu")
    train_measured(shardcheck, model, AdamW(model.parameters()), m8_batch())


# As above, but each of the 16 parameters stays a tensor of its own, with its own step count.
@pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4})
@pytest.mark.memory(optimizer={2: P + 16 * 4, 4: P // 2 + 16 * 4})
@pytest.mark.memory(state={2: 4_210_752, 4: 2_105_408})
def test_fsdp2(device_mesh, shardcheck):
    model = m8()
    for layer in model:
        fully_shard(layer, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    train_measured(shardcheck, model, AdamW(model.parameters()), m8_batch())
