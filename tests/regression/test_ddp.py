"""DistributedDataParallel: nothing is sharded, and its buckets are a second copy of the gradients.

M8 has P = 526,336 parameters x 4 B. AdamW keeps two moments per parameter and a step count of 4 B
per parameter tensor, of which M8 has 16. Calls have a file of their own, test_ddp_calls.py.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from mistakes import caught
from models import m8
from steps import P, measure_third
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from pytest_shardcheck import max_collectives, max_memory, memory

STATE = 4 * P + 16 * 4
SAVED = 8 * 32 * 256 * 4  # each layer's input
W = 256 * 256 * 4  # one layer's weight

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
]
BOTH_SIZES = pytest.mark.world_size(2, 4)
THE_STATE = pytest.mark.memory(params=P, grads=P, optimizer=2 * P + 16 * 4)
TWO_BUCKETS = pytest.mark.collectives(all_reduce=2)  # a first one of 1 MiB, then all others


def wrapped(**options):
    model = DistributedDataParallel(m8(), **options)
    return model, AdamW(model.parameters())


# At the peak AdamW has two temporaries of one layer, and the batch and the loss still live.
@BOTH_SIZES
@THE_STATE
@TWO_BUCKETS
@pytest.mark.collectives(all_reduce=2, phase="backward")
@pytest.mark.saved_activations(bytes=SAVED, count=8)
@pytest.mark.memory(live=STATE + P, peak=11_084_868)
def test_buckets_are_a_second_copy(process_group, shardcheck):
    reading = measure_third(shardcheck, *wrapped())
    # No sum over parameters shows it: the copy is a quarter of the model's state.
    assert reading.memory.at_peak["communication buffers"] == P


@BOTH_SIZES
@THE_STATE
@TWO_BUCKETS
@pytest.mark.collectives(all_reduce=2, phase="backward")
@pytest.mark.saved_activations(bytes=SAVED, count=8)
@pytest.mark.memory(live=STATE, peak=8_979_528)
def test_gradients_as_views_of_buckets(process_group, shardcheck):
    reading = measure_third(shardcheck, *wrapped(gradient_as_bucket_view=True))
    assert "communication buffers" not in reading.memory.at_peak


def test_a_forgotten_bucket_view_is_named(process_group, shardcheck):
    ceiling = max_memory("9 MB")
    shardcheck.check(measure_third(shardcheck, *wrapped(gradient_as_bucket_view=True)), ceiling)
    reading = measure_third(shardcheck, *wrapped())
    with caught(
        "11,084,868 B (11.1 MB), 2,084,868 B (23.2 %) above",
        f"communication buffers {P:,} B",
        "2 x 1,052,672 B float32 [263168] communication buffers, in DistributedDataParallel",
    ):
        shardcheck.check(reading, ceiling)


def accumulate(model, optimizer, *, set_to_none):
    """Take three micro-batches to a step, of which the last is communicated."""
    optimizer.zero_grad(set_to_none=set_to_none)
    for last in (False, False, True):
        with nullcontext() if last else model.no_sync():
            model(torch.randn(32, 256)).sum().backward()
    optimizer.step()


def accumulated(shardcheck, *, set_to_none):
    model, optimizer = wrapped(gradient_as_bucket_view=True)
    for _ in range(2):
        accumulate(model, optimizer, set_to_none=set_to_none)
    with shardcheck.measure(model, optimizer) as reading:
        accumulate(model, optimizer, set_to_none=set_to_none)
    return reading


# Without a sync nobody points a cleared gradient into its bucket: it is a tensor of its own until
# the last micro-batch, beside buckets that never go. Zeroed gradients stay views.
def test_clearing_gradients_under_no_sync_undoes_bucket_views(process_group, shardcheck):
    # One layer's gradient before it is added, all inputs, and what backward hands on.
    peak = memory(peak=STATE + (W + 1_024) + SAVED + 32_768 + 8)
    shardcheck.check(accumulated(shardcheck, set_to_none=False), peak)
    cleared = accumulated(shardcheck, set_to_none=True)
    with caught("11,084,872 B", f"{P:,} B", "above"):
        shardcheck.check(cleared, peak)
    with caught(f"gradients {2 * P:,} B", "2 x 1,052,672 B float32 [263168] gradients"):
        shardcheck.check(cleared, max_memory("9 MB"))


# Half the bytes on the wire cost memory: where backward ends, both buckets stand beside all
# gradients, and both their sums in half precision; so do the batch, the loss and its gradient.
@BOTH_SIZES
@THE_STATE
@pytest.mark.memory(live=STATE + P, peak=STATE + P + P // 2 + 32_768 + 8)
@pytest.mark.collectives(all_reduce=2)
@pytest.mark.max_collectives(bytes={"all_reduce": P // 2})
def test_a_compressing_hook(process_group, shardcheck):
    model, optimizer = wrapped()
    model.register_comm_hook(None, fp16_compress_hook)
    reading = measure_third(shardcheck, model, optimizer)
    assert {call.dtype for call in reading.collectives.calls} == {"float16"}
    assert reading.memory.at_peak["communication buffers"] == P + P // 2


def test_a_forgotten_hook_is_named(process_group, shardcheck):
    reading = measure_third(shardcheck, *wrapped())
    with caught(
        f"max_collectives(bytes[all_reduce]): the ceiling of {P // 2:,} B",
        f"{P:,} B (2.1 MB), {P // 2:,} B (100.0 %) above",
        "all_reduce of float32 [263168] (1,052,672 B) in group 'world', backward in 4",
    ):
        shardcheck.check(reading, max_collectives(bytes={"all_reduce": P // 2}))


# torch refuses its own bf16 hook where it knows no bf16 sum, which gloo has had for long: the
# refusal goes by the hook's name.
def test_bf16_compression_is_refused_on_gloo(process_group, shardcheck):
    model, optimizer = wrapped()
    with pytest.raises(TypeError, match=r"BF16 .* hook required CUDA 11\+ and NCCL"):
        model.register_comm_hook(None, bf16_compress_hook)

    def renamed(state, bucket):
        return bf16_compress_hook(state, bucket)

    model.register_comm_hook(None, renamed)
    reading = measure_third(shardcheck, model, optimizer)
    assert {call.dtype for call in reading.collectives.calls} == {"bfloat16"}
    assert reading.collectives.total.bytes == P // 2


# NCCL sums bf16, and torch knows it.
@pytest.mark.world_size(2, device="cuda")
def test_bf16_compression(process_group, world, shardcheck):
    model = DistributedDataParallel(m8().to(world.device), device_ids=[world.local_rank])
    model.register_comm_hook(None, bf16_compress_hook)
    reading = measure_third(shardcheck, model, AdamW(model.parameters()))
    assert {call.dtype for call in reading.collectives.calls} == {"bfloat16"}
    assert reading.collectives.total.bytes == P // 2


# The gradient of a sum is one number, expanded: no BLAS takes that, so `mm` clones it inside the
# operator, where no dispatch shows it. Where gradients are there before (bucket views, or zeroed
# ones as here) the peak stands at the first weight's gradient: the allocator's is higher by the
# clone (32 x 256 x 4 B) less what comes after it, the bias' gradient. 8 B more are there with any
# loss, with or without a process group: which, is open.
@pytest.mark.world_size(1)
@pytest.mark.max_memory(allocated="1 GB")
@pytest.mark.parametrize(("loss", "gap"), [("sum", 32_768 - 1_024 + 8), ("mse", 8)])
def test_what_the_allocator_has_more(loss, gap, shardcheck):
    model, batch = m8(), torch.randn(32, 256)

    def train():
        model.zero_grad(set_to_none=False)
        output = model(batch)
        (output.sum() if loss == "sum" else mse_loss(output, batch)).backward()

    train()
    with shardcheck.measure(model) as reading:
        train()
    assert reading.memory.allocated - reading.memory.peak == gap
