"""DistributedDataParallel: nothing is sharded, and its buckets are a second copy of the gradients.

M8 has P = 526,336 parameters x 4 B. AdamW keeps two moments per parameter and a step count of 4 B
per parameter tensor, of which M8 has 16.
"""

from __future__ import annotations

import pytest
from models import m8
from steps import P, measure_third
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

pytestmark = [
    pytest.mark.world_size(2, 4),
    pytest.mark.memory(params=P, grads=P, optimizer=2 * P + 16 * 4),
    pytest.mark.collectives(all_reduce=2),  # two buckets: a first small one, then all others
    pytest.mark.collectives(all_reduce=2, phase="backward"),
    pytest.mark.saved_activations(bytes=8 * 32 * 256 * 4, count=8),  # each layer's input
]


# At the peak AdamW has two temporaries of one layer, and the batch and the loss still live.
@pytest.mark.memory(live=5 * P + 64, peak=11_084_868)
def test_buckets_are_a_second_copy(process_group, shardcheck, world):
    model = DistributedDataParallel(m8())
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    # No sum over parameters shows it: the copy is a quarter of the model's state.
    assert reading.memory.at_peak["communication buffers"] == P
    # Rajbhandari et al. 2020, section 7: 2 P a step, of which a ring of N sends (N - 1) / N.
    assert reading.collectives.total.wire_bytes == 2 * P * (world.size - 1) // world.size


@pytest.mark.memory(live=4 * P + 64, peak=8_979_528)
def test_gradients_as_views_of_buckets(process_group, shardcheck):
    model = DistributedDataParallel(m8(), gradient_as_bucket_view=True)
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    assert (
        "communication buffers" not in reading.memory.at_peak
        or not (reading.memory.at_peak["communication buffers"])
    )
