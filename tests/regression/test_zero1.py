"""ZeRO-1: ZeroRedundancyOptimizer gives each parameter's moments one owner; the rest is DDP's."""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import m8, train
from steps import P, measure_third
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Adafactor, AdamW

from pytest_shardcheck import collectives, expect, max_collectives, max_memory, memory

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
]
OWNED = {2: P + 8 * 4, 4: P // 2 + 4 * 4}  # 16 / N of M8's parameters, with as many step counts


def wrapped(module, **options):
    model = DistributedDataParallel(module)
    return model, ZeroRedundancyOptimizer(model.parameters(), AdamW, **options)


@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=P, grads=P, optimizer=OWNED)
@pytest.mark.memory(state={2: 6_316_064, 4: 5_263_376})
@pytest.mark.memory(live={2: 8_421_408, 4: 7_368_720}, peak={2: 9_240_612, 4: 8_187_924})
@pytest.mark.collectives(all_reduce=2, broadcast=16)  # each owner sends its parameters on
@pytest.mark.collectives(broadcast=16, phase="optimizer")
@pytest.mark.saved_activations(bytes=262_144)
def test_under_ddp(process_group, shardcheck):
    measure_third(shardcheck, *wrapped(m8()))


def test_a_plain_optimizer_in_its_place_is_named(process_group, shardcheck):
    model = DistributedDataParallel(m8())
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    with caught(
        f"max_memory(optimizer): the ceiling of {OWNED[2]:,} B",
        f"{2 * P + 16 * 4:,} B (4.2 MB), {P + 8 * 4:,} B (100.0 %) above",
    ):
        shardcheck.check(reading, max_memory(optimizer=OWNED))


# A message for each owner instead of each parameter, of the same bytes.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(optimizer=OWNED)
@pytest.mark.collectives(all_reduce=2, broadcast={2: 2, 4: 4})
def test_parameters_as_views_of_buckets(process_group, shardcheck):
    reading = measure_third(shardcheck, *wrapped(m8(), parameters_as_bucket_view=True))
    assert reading.collectives["broadcast"].bytes == P


# Forgotten, it is a message for each parameter; of the same bytes, so no ceiling of bytes says so.
def test_forgotten_views_of_parameters_are_named(process_group, shardcheck):
    owners = collectives(all_reduce=2, broadcast=2)
    right = measure_third(shardcheck, *wrapped(m8(), parameters_as_bucket_view=True))
    shardcheck.check(right, owners)
    wrong = measure_third(shardcheck, *wrapped(m8()))
    shardcheck.check(wrong, max_collectives(bytes={"broadcast": P}))
    with caught(
        "collectives(broadcast): 2 calls were expected",
        "16 calls, 14 more",
        "4 x broadcast of float32 [256, 256] (262,144 B) in group 'world', peer 0, optimizer at",
        "4 x broadcast of float32 [256] (1,024 B) in group 'world', peer 1, optimizer at",
    ):
        shardcheck.check(wrong, owners)


# A mistake that the loss does not show: without DDP nobody averages gradients.
@pytest.mark.world_size(2)
@pytest.mark.collectives(broadcast=16)
def test_without_ddp_gradients_are_never_averaged(process_group, shardcheck):
    model = m8()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    reading = measure_third(shardcheck, model, optimizer)
    with caught(
        "collectives(all_reduce): 2 calls were expected and not measured",
        "0 calls, 2 fewer",
    ):
        shardcheck.check(reading, collectives(all_reduce=2, broadcast=16))


# Adafactor keeps a row and a column of a weight, a bias whole, and a step count of each. An owner
# has whole parameters, also as views of a bucket, so they are factored as without; and as many
# weights and biases as any other.
FACTORS = 8 * (2 * 1_024 + 4) + 8 * (1_024 + 4)


@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=P, grads=P, optimizer={n: FACTORS // n for n in (2, 4)})
@pytest.mark.collectives(all_reduce=2, phase="backward")
@pytest.mark.parametrize("views", [False, True], ids=["parameters", "views"])
def test_adafactor(views, process_group, shardcheck):
    model = DistributedDataParallel(m8())
    options = {"parameters_as_bucket_view": views}
    optimizer = ZeroRedundancyOptimizer(model.parameters(), Adafactor, **options)
    measure_third(shardcheck, model, optimizer)


# Its state was small before: 1.2 % of the parameters, and half of that is all that owners save.
def test_a_plain_adafactor_in_its_place_is_named(process_group, shardcheck):
    model = DistributedDataParallel(m8())
    reading = measure_third(shardcheck, model, Adafactor(model.parameters()))
    with caught(
        "max_memory(optimizer): the ceiling of 12,320 B",
        "24,640 B (24.6 kB), 12,320 B (100.0 %) above",
    ):
        shardcheck.check(reading, max_memory(optimizer=FACTORS // 2))


class Table(nn.Module):
    """A table of 32 kB before three matrices of 1 kB: no owner can have a half of it."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(512, 16)
        self.layers = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(3)))

    def forward(self, batch):
        return self.layers(self.table(batch.int()))


# The largest parameter goes first, then each to the owner that has least: all matrices to rank 1.
@pytest.mark.memory(optimizer=2 * 32_768 + 4, rank=0)
@pytest.mark.memory(optimizer=2 * 3 * 1_024 + 3 * 4, rank=1)
def test_owners_are_unequal(process_group, world, shardcheck):
    model, optimizer = wrapped(Table())
    train(model, optimizer, torch.ones(4), steps=2)
    with shardcheck.measure(model, optimizer) as reading:
        train(model, optimizer, torch.ones(4), steps=1)
    even = max_memory(optimizer=expect.zero(stage=1, params=8_960, tensors=4).optimizer)
    if world.rank == 1:
        shardcheck.check(reading, even)
    else:
        with caught("the ceiling of 35,856 B", "rank 0: 65,540 B (65.5 kB), 29,684 B (82.8 %)"):
            shardcheck.check(reading, even)


# Three parameters have three owners: the fourth rank keeps nothing, which is no mistake of its own,
# and sends nothing; a world of four saves no more than one of three.
@pytest.mark.world_size(4)
@pytest.mark.memory(optimizer=2 * 1_024 + 4, rank=slice(0, 3))
@pytest.mark.memory(optimizer=0, rank=3)
@pytest.mark.collectives(all_reduce=1, broadcast=3)
def test_more_ranks_than_parameters(process_group, world, shardcheck):
    model, optimizer = wrapped(nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(3))))
    train(model, optimizer, torch.ones(4, 16), steps=2)
    with shardcheck.measure(model, optimizer) as reading:
        train(model, optimizer, torch.ones(4, 16), steps=1)
    a_quarter = max_memory(optimizer=2 * 3 * 1_024 // 4 + 4)
    if world.rank == 3:
        shardcheck.check(reading, memory(optimizer=0))
    else:
        with caught("2,052 B (2.1 kB), 512 B (33.2 %) above"):
            shardcheck.check(reading, a_quarter)


# The owners' states come one by one, each pickled (some kB more) and unpickled: with its own, rank
# 0 ends with all of it, and the last pickle stands beside the last copy. The others drop theirs.
@pytest.mark.world_size(2, 4)
@pytest.mark.max_memory(peak_above_start="4.3 MB", region="consolidate")  # 2 P and pickling, any N
@pytest.mark.memory(growth={2: OWNED[2], 4: 3 * OWNED[4]}, rank=0, region="consolidate")
@pytest.mark.memory(growth=0, rank=slice(1, None), region="consolidate")
@pytest.mark.collectives(broadcast={2: 2, 4: 6}, region="consolidate")  # size and bytes
@pytest.mark.max_collectives(largest={2: "2.2 MB", 4: "1.1 MB"}, region="consolidate")
def test_consolidation(process_group, world, shardcheck):
    model, optimizer = wrapped(m8())
    before = measure_third(shardcheck, model, optimizer)
    with shardcheck.measure(model, optimizer, region="consolidate"):
        optimizer.consolidate_state_dict(to=0)
    after = measure_third(shardcheck, model, optimizer)
    sharded = max_memory(optimizer=OWNED)
    shardcheck.check(before, sharded)
    if world.rank > 0:
        shardcheck.check(after, sharded)
        return
    # What was consolidated stays until the next time: rank 0 is sharded no more.
    with caught(f"rank 0: {2 * P + 16 * 4:,} B (4.2 MB)", "above", f"optimizer {2 * P + 64:,} B"):
        shardcheck.check(after, sharded)
