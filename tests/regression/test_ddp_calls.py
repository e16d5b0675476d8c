"""DistributedDataParallel: what it sends beside the gradients, and when it sends too often.

M8's P = 2,105,344 B of gradients go in two buckets, a first one of 1 MiB and all others.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from mistakes import caught
from models import m8
from steps import P, measure_third, step
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from pytest_shardcheck import collectives

LIVE = 5 * P + 16 * 4  # state, and buckets
BITMAPS = 2 * 16 * 4  # which of 16 parameters were used: here, and anywhere

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
]


def wrapped(**options):
    model = DistributedDataParallel(m8(), **options)
    return model, AdamW(model.parameters())


# One bucket until the first backward has shown the order; rank 0 then sends the order of 16
# parameters with the number of buckets, and their sizes.
@pytest.mark.collectives(all_reduce=1, region="first")
@pytest.mark.collectives(all_reduce=2, broadcast=2, region="second")
@pytest.mark.collectives(all_reduce=2, region="third")
def test_the_second_step_rebuilds_the_buckets(process_group, shardcheck):
    model, optimizer = wrapped()
    readings = {}
    for region in ("first", "second", "third"):
        with shardcheck.measure(model, optimizer, region=region) as readings[region]:
            step(model, optimizer)
    with caught(
        "collectives(broadcast): 0 calls were expected and not measured in region 'second'",
        "1 x broadcast of int32 [17] (68 B) in group 'world', peer 0, forward",
        "1 x broadcast of int32 [2] (8 B)",
    ):
        shardcheck.check(readings["second"], collectives(all_reduce=2))


# The graph is recorded in the first step, whose used-parameter bitmap is the only one; the buckets
# are rebuilt in the third: one warm-up step more than without.
@pytest.mark.collectives(all_reduce=2, region="first")
@pytest.mark.collectives(all_reduce=1, region="second")
@pytest.mark.collectives(all_reduce=2, broadcast=2, region="third")
@pytest.mark.collectives(all_reduce=2, region="fourth")
@pytest.mark.memory(live=LIVE + BITMAPS, region="fourth")
def test_a_static_graph(process_group, shardcheck):
    model, optimizer = wrapped(static_graph=True)
    readings = {}
    for region in ("first", "second", "third", "fourth"):
        with shardcheck.measure(model, optimizer, region=region) as readings[region]:
            step(model, optimizer)
    with caught("collectives(broadcast): 0 calls", "in region 'third'", "broadcast of int32 [17]"):
        shardcheck.check(readings["third"], collectives(all_reduce=2))


# A bitmap of 16 parameters, kept twice and summed after the gradients, so that a parameter which
# one rank used is known to all. It costs a message a step, also where every one is used.
def test_looking_for_unused_parameters_is_a_message_more(process_group, shardcheck):
    expected = collectives(all_reduce=2)
    shardcheck.check(measure_third(shardcheck, *wrapped()), expected)
    reading = measure_third(shardcheck, *wrapped(find_unused_parameters=True))
    assert reading.memory.live == LIVE + BITMAPS
    with caught(
        "collectives(all_reduce): 2 calls were expected",
        "3 calls, 1 more",
        "1 x all_reduce of int32 [16] (64 B) in group 'world', backward",
    ):
        shardcheck.check(reading, expected)


# A35, accelerate PR 1726: DDP decides in forward whether backward communicates.
def test_no_sync_around_the_backward_only(process_group, shardcheck):
    model, _ = wrapped()
    for _ in range(2):
        two_micro_batches(model, whole=True)
    expected = collectives(all_reduce=2)
    with shardcheck.measure(model) as right:
        two_micro_batches(model, whole=True)
    shardcheck.check(right, expected)
    with shardcheck.measure(model) as wrong:
        two_micro_batches(model, whole=False)
    with caught(
        "collectives(all_reduce): 2 calls were expected",
        "4 calls, 2 more",
        "2 x all_reduce of float32 [263168] (1,052,672 B) in group 'world', backward in 4, 0 at",
        f"test_ddp_calls.py:{two_micro_batches.__code__.co_firstlineno + 4}",
    ):
        shardcheck.check(wrong, expected)


def two_micro_batches(model, *, whole):
    with model.no_sync() if whole else nullcontext():
        loss = model(torch.randn(32, 256)).sum()
        with nullcontext() if whole else model.no_sync():
            loss.backward()
    model(torch.randn(32, 256)).sum().backward()


# A35, torchrec PR 4121: the wrapper inside knows nothing of the outer one's no_sync.
def test_a_ddp_inside_another_communicates_on(process_group, shardcheck):
    inner = DistributedDataParallel(nn.Linear(16, 16))
    outer = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), inner))
    batch = torch.randn(4, 16)
    for _ in range(2):
        outer(batch).sum().backward()
    with shardcheck.measure(outer) as right, outer.no_sync(), inner.no_sync():
        outer(batch).sum().backward()
    shardcheck.check(right, collectives())
    with shardcheck.measure(outer) as wrong, outer.no_sync():
        outer(batch).sum().backward()
    with caught("1 call, 1 more", "1 x all_reduce of float32 [272] (1,088 B)", "in 1.module at"):
        shardcheck.check(wrong, collectives())
