"""The counter's peak against the allocator's own events, in one run.

They agree within 0.1 % where every kernel allocates only what it returns: linear, norm and
elementwise layers. Some collectives have workspaces inside one operator, which no dispatch shows;
`test_kernels.py` has the layers that do.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from models import m8
from steps import measure_third
from torch import nn
from wrapped import ddp, fsdp2, zero1

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.max_memory(allocated="1 GB"),  # naming it follows the allocator
]


def mixed():
    """Linear, norm and elementwise layers."""
    return nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 256))


@pytest.mark.parametrize(
    ("module", "build"),
    [(m8, ddp), (m8, zero1), (m8, fsdp2), (mixed, ddp), (mixed, zero1)],
    ids=lambda function: function.__name__,
)
def test_they_agree(module, build, device_mesh, shardcheck):
    memory = measure_third(shardcheck, *build(module(), device_mesh)).memory
    assert memory.peak == pytest.approx(memory.allocated, rel=0.001)


# gloo gathers into a flat copy of the output, in a thread of its own. Where a gather stands at the
# peak (FSDP2 of two layers), the allocator has that much more.
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # 2.13 renames
def test_gloo_gathers_into_a_copy_of_its_own(process_group, shardcheck, world):
    shard, whole = torch.ones(32_896), torch.empty(world.size * 32_896)
    with shardcheck.measure() as reading:
        dist.all_gather_into_tensor(whole, shard)
    assert reading.memory.peak_above_start == 0
    ours = 8  # what the group allocated when it came up, without an operator
    assert reading.memory.allocated - reading.memory.peak == whole.nbytes + ours
