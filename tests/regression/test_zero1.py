"""ZeRO-1: ZeroRedundancyOptimizer gives each parameter's moments one owner; the rest is DDP's."""

from __future__ import annotations

import pytest
from models import m8
from steps import P, measure_third
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW


# M8's 16 parameters have equal owners: 16 / N each, with as many step counts.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=P, grads=P, optimizer={2: P + 8 * 4, 4: P // 2 + 4 * 4})
@pytest.mark.memory(state={2: 6_316_064, 4: 5_263_376})
@pytest.mark.memory(live={2: 8_421_408, 4: 7_368_720}, peak={2: 9_240_612, 4: 8_187_924})
@pytest.mark.collectives(all_reduce=2, broadcast=16)  # each owner sends its parameters on
@pytest.mark.collectives(broadcast=16, phase="optimizer")
@pytest.mark.saved_activations(bytes=262_144)
def test_under_ddp(process_group, shardcheck):
    model = DistributedDataParallel(m8())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    measure_third(shardcheck, model, optimizer)


# A mistake that the loss does not show: without DDP nobody averages gradients.
@pytest.mark.world_size(2)
@pytest.mark.collectives(broadcast=16)
def test_without_ddp_gradients_are_never_averaged(process_group, shardcheck):
    model = m8()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    measure_third(shardcheck, model, optimizer)
