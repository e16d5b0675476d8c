"""DistributedDataParallel's buffers: rank 0's go to all in forward, more often than people think.

A BatchNorm of 4 channels has a mean and a variance of 4 floats each, and an int64 count of batches:
a message for each dtype.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pytest_shardcheck import collectives, max_memory, saved_activations

BATCH = 8 * 4 * 4  # and the output of each layer

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
]


def warmed(**options):
    """Return a model whose buckets are settled."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model = DistributedDataParallel(model, **options)
    train(model)
    train(model)
    return model


def train(model):
    model(torch.randn(8, 4)).sum().backward()


def accumulate(model):
    with model.no_sync():
        train(model)


def evaluate(model):
    with torch.no_grad():
        model(torch.randn(8, 4))


def measured(shardcheck, take, model, region="step"):
    with shardcheck.measure(model, region=region) as measurement:
        take(model)
    return measurement.reading


BUFFERS = (
    "1 x broadcast of float32 [8] (32 B) in group 'world', peer 0, forward",
    "1 x broadcast of int64 [1] (8 B) in group 'world', peer 0, forward",
    "in DistributedDataParallel at",
)


# Whether a forward sends buffers was decided by the one before it: not after one that had no
# gradients to average. So the first under no_sync or no_grad still sends, and the first step of
# training after them trains on statistics that nobody sent.
@pytest.mark.collectives(all_reduce=1, broadcast=2, region="train")
@pytest.mark.collectives(broadcast=2, region="accumulate, first")
@pytest.mark.collectives(region="accumulate, second")
@pytest.mark.collectives(all_reduce=1, region="train after no_sync")
@pytest.mark.collectives(broadcast=2, region="evaluate, first")
@pytest.mark.collectives(region="evaluate, second")
@pytest.mark.collectives(all_reduce=1, region="train after no_grad")
@pytest.mark.parametrize("evaluates", [True, False], ids=["eval", "train"])
def test_the_forward_before_decides(evaluates, process_group, shardcheck):
    model = warmed()
    measured(shardcheck, train, model, "train")
    measured(shardcheck, accumulate, model, "accumulate, first")
    measured(shardcheck, accumulate, model, "accumulate, second")
    measured(shardcheck, train, model, "train after no_sync")
    model.train(not evaluates)  # the mode changes no call
    measured(shardcheck, evaluate, model, "evaluate, first")
    measured(shardcheck, evaluate, model, "evaluate, second")
    model.train()
    measured(shardcheck, train, model, "train after no_grad")


# A33, ultralytics #24410.
def test_buffers_are_forgotten(process_group, shardcheck):
    expected = collectives(all_reduce=1)
    shardcheck.check(measured(shardcheck, train, warmed(broadcast_buffers=False)), expected)
    with caught("collectives(broadcast): 0 calls were expected", *BUFFERS):
        shardcheck.check(measured(shardcheck, train, warmed()), expected)


def test_no_sync_is_not_silent(process_group, shardcheck):
    right = measured(shardcheck, accumulate, warmed(broadcast_buffers=False))
    shardcheck.check(right, collectives())
    with caught("collectives(broadcast): 0 calls were expected", *BUFFERS):
        shardcheck.check(measured(shardcheck, accumulate, warmed()), collectives())


# Evaluation is every rank's business then: rank 0's alone meets whatever the others send next.
def test_evaluating_the_wrapper(process_group, shardcheck):
    model = warmed().eval()
    shardcheck.check(measured(shardcheck, evaluate, model.module), collectives())
    with caught("collectives(broadcast): 0 calls were expected", *BUFFERS):
        shardcheck.check(measured(shardcheck, evaluate, model), collectives())


# A norm then trains on what it is evaluated with: it makes the batch's mean and deviation, 16 B
# each, beside the batch and its output. With gradients autograd keeps them.
def test_evaluating_in_train_mode(process_group, shardcheck):
    norm = nn.Sequential(nn.BatchNorm1d(4))
    ceiling = max_memory(peak_above_start=2 * BATCH)
    shardcheck.check(measured(shardcheck, evaluate, norm.eval()), ceiling)
    with caught("288 B, 32 B (12.5 %) above", "2 x 16 B float32 [4] temporaries, in 0 at"):
        shardcheck.check(measured(shardcheck, evaluate, norm.train()), ceiling)

    kept = saved_activations(bytes=BATCH)
    shardcheck.check(measured(shardcheck, train, norm.eval()), kept)
    with caught("128 B was expected", "160 B, 32 B (25.0 %) above", "by module: 0 160 B"):
        shardcheck.check(measured(shardcheck, train, norm.train()), kept)
