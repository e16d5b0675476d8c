"""Tensor and sequence parallel: what is cut, what goes over the wire, what each rank still saves.

M8 in four pairs, the first of each cut by columns, the second by rows. Batch b = 32, width d = 256.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from steps import third
from systems.parallel import in_pairs
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, relu
from torch.optim import SGD, AdamW

from pytest_shardcheck import collectives, max_collectives, max_memory, max_saved_activations

BATCH = 32 * 256 * 4
WEIGHT, BIAS = 256 * 256 * 4, 256 * 4


def measured(shardcheck, model, optimizer, shape=(32, 256)):
    """Measure the third step; the batch wants a gradient, as if layers came before."""
    batch = torch.randn(shape, requires_grad=True)

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return third(shardcheck, step, model, optimizer).reading


# All weights and every other bias are cut; a bias that is added after the sum stays whole.
CUT = {size: (8 * WEIGHT + 4 * BIAS) // size + 4 * BIAS for size in (2, 4)}
# Megatron-LM (Shoeybi et al. 2019, section 3): one all_reduce of b d a pair each way.
PAIRS = max_collectives(bytes=8 * BATCH)
ONE_EACH_WAY = collectives(all_reduce=8)


@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=CUT, grads=CUT)
@pytest.mark.memory(optimizer={size: 2 * cut + 16 * 4 for size, cut in CUT.items()})
@pytest.mark.collectives(all_reduce=4, phase="forward")
@pytest.mark.collectives(all_reduce=4, phase="backward")
@pytest.mark.collectives(phase="optimizer")
# The first of a pair saves its input whole, the second its own columns.
@pytest.mark.saved_activations(bytes={n: 4 * (BATCH + BATCH // n) for n in (2, 4)}, count=8)
def test_pairs(device_mesh, shardcheck, world):
    model = in_pairs(device_mesh)
    reading = measured(shardcheck, model, AdamW(model.parameters()))
    assert reading.collectives.total.bytes == 8 * BATCH
    assert reading.collectives.total.wire_bytes == 8 * BATCH * 2 * (world.size - 1) // world.size
    # State, the batch with its gradient, and the mesh's list of ranks; AdamW's two temporaries of
    # a weight, beside that of the bias before it.
    live = reading.memory.state + 2 * BATCH + 4 * world.size
    assert reading.memory.live == live
    assert reading.memory.peak == live + 2 * WEIGHT // world.size + BIAS


@pytest.mark.world_size(2)
def test_comm_debug_mode_counts_the_same(device_mesh, shardcheck):
    model, batch = in_pairs(device_mesh), torch.randn(32, 256)
    mode = CommDebugMode()
    with mode, torch.no_grad():
        model(batch)
    with shardcheck.measure(model) as reading, torch.no_grad():
        model(batch)
    assert mode.get_total_counts() == reading.collectives["all_reduce"].count == 4


# The second matrix was forgotten: whole on each rank, and what the first made is gathered for it.
@pytest.mark.world_size(2)
def test_the_second_matrix_was_forgotten(device_mesh, shardcheck):
    right = in_pairs(device_mesh)
    reading = measured(shardcheck, right, SGD(right.parameters()))
    shardcheck.check(reading, max_memory(params=CUT))
    shardcheck.check(reading, ONE_EACH_WAY)

    wrong = in_pairs(device_mesh, lambda: ColwiseParallel(output_layouts=Replicate()), row=None)
    reading = measured(shardcheck, wrong, SGD(wrong.parameters()))
    # Four more half weights a rank, less the four halves of biases that were whole before.
    whole = CUT[2] + 4 * WEIGHT // 2
    with caught(f"max_memory(params): the ceiling of {CUT[2]:,} B", f"params {whole:,} B"):
        shardcheck.check(reading, max_memory(params=CUT))
    with caught(
        "collectives(all_gather): 0 calls were expected",
        "4 x all_gather of float32 [64, 128] (32,768 B) in group 'world', forward in 0, 2, 4, 6 at",
        "collectives(all_reduce): 8 calls were expected",
    ):
        shardcheck.check(reading, ONE_EACH_WAY)


# Both matrices are cut, but the layouts between them say that activations are whole: gathered after
# the first, cut again for the second, gathered in the second's backward.
@pytest.mark.world_size(2)
def test_layouts_that_replicate(device_mesh, shardcheck):
    model = in_pairs(
        device_mesh,
        lambda: ColwiseParallel(output_layouts=Replicate()),
        lambda: RowwiseParallel(input_layouts=Replicate()),
    )
    reading = measured(shardcheck, model, SGD(model.parameters()))
    shardcheck.check(reading, max_memory(params=CUT))  # no sum over parameters shows it
    with caught(
        "collectives(all_gather): 0 calls were expected",
        "4 x all_gather of float32 [64, 128] (32,768 B) in group 'world', forward in 0, 2, 4, 6 at",
        "4 x all_gather of float32 [64, 128] (32,768 B) in group 'world', backward in 7, 5, 3, 1",
    ):
        shardcheck.check(reading, ONE_EACH_WAY)
    with caught("max_collectives(bytes): the ceiling of 262,144 B", "524,288 B"):
        shardcheck.check(reading, PAIRS)


class Block(nn.Module):
    """A norm and a pair, over b = 4 sequences of s = 16, width h = 64."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, hidden):
        return hidden + self.down(relu(self.up(self.norm(hidden))))


HIDDEN = 4 * 16 * 64 * 4


def blocks(mesh, **norm):
    plan = {"up": ColwiseParallel(input_layouts=Shard(1)), **norm}
    plan["down"] = RowwiseParallel(output_layouts=Shard(1))
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, mesh, plan)
    return model, SGD(model.parameters(), foreach=False)


# A block saves its norm's input and two statistics of 4 B a token of its own, its gathered input,
# and its columns of 4 h. Korthikanti et al. 2022 don't save the second, and gather it once more.
SAVED = {n: 2 * ((HIDDEN + 2 * 4 * 16 * 4) // n + HIDDEN + 4 * HIDDEN // n) for n in (2, 4)}


# An all_reduce is a reduce_scatter and an all_gather: the same bytes on the wire. The gradients of
# the norms' weights and biases are partial sums until the optimizer uses them.
@pytest.mark.world_size(2, 4)
@pytest.mark.collectives(all_gather=2, reduce_scatter=2, phase="forward")
@pytest.mark.collectives(all_gather=2, reduce_scatter=2, phase="backward")
@pytest.mark.collectives(all_reduce=4, phase="optimizer")
@pytest.mark.saved_activations(bytes=SAVED, count=12)
def test_sequence_parallel(device_mesh, shardcheck, world):
    model, optimizer = blocks(device_mesh, norm=SequenceParallel())
    reading = measured(shardcheck, model, optimizer, (4, 16 // world.size, 64))
    others = (world.size - 1) / world.size
    assert reading.collectives["all_gather"].wire_bytes == 4 * HIDDEN * others
    assert reading.collectives["reduce_scatter"].wire_bytes == 4 * HIDDEN * others


# Norms that nobody told of the sequence: each rank trains its own by its own tokens, and only the
# optimizer's missing calls say so. All other figures are right.
@pytest.mark.world_size(2)
def test_norms_outside_sequence_parallel(device_mesh, shardcheck):
    model, optimizer = blocks(device_mesh)
    reading = measured(shardcheck, model, optimizer, (4, 8, 64))
    shardcheck.check(reading, max_saved_activations(bytes=SAVED))
    with caught(
        "collectives(all_reduce, phase='optimizer'): 4 calls were expected",
        "0 calls, 4 fewer",
    ):
        shardcheck.check(reading, collectives(all_reduce=4, phase="optimizer"))


# Without sequence parallel the norms work on whole sequences, on each rank the same.
@pytest.mark.world_size(2)
def test_norms_over_whole_sequences(device_mesh, shardcheck):
    model = nn.Sequential(Block(), Block())
    for block in model:
        parallelize_module(block, device_mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    reading = measured(shardcheck, model, SGD(model.parameters(), foreach=False), (4, 16, 64))
    with caught(
        "max_saved_activations(bytes): the ceiling of 115,200 B",
        "132,096 B",
        "0.norm 16,896 B",
    ):
        shardcheck.check(reading, max_saved_activations(bytes=SAVED))


# Logits of b = 32 by V = 1,024. Cut, the loss needs each row's maximum, sum and target: 128 B each.
@pytest.mark.world_size(2)
@pytest.mark.parametrize("cut", [True, False], ids=["cut", "gathered"])
def test_loss_parallel(cut, device_mesh, shardcheck):
    head = ColwiseParallel(use_local_output=False)
    if not cut:
        head = ColwiseParallel(output_layouts=Replicate())
    model = parallelize_module(nn.Sequential(nn.Linear(64, 1_024)), device_mesh, {"0": head})
    hidden, target = torch.randn(32, 64, requires_grad=True), torch.arange(32)
    with shardcheck.measure(model) as measurement:
        if cut:
            with loss_parallel():
                cross_entropy(model(hidden), target).backward()
        else:
            cross_entropy(model(hidden), target).backward()
    reading = measurement.reading
    small = (
        collectives(all_reduce=3, phase="forward"),
        max_collectives(largest=32 * 4, phase="forward"),
    )
    if cut:
        for expectation in small:
            shardcheck.check(reading, expectation)
        return
    logits = "1 x all_gather of float32 [64, 512] (131,072 B) in group 'world', forward in 0 at"
    for expectation in small:
        with caught(logits):
            shardcheck.check(reading, expectation)


# Each layer's part of a tensor-parallel rank is sharded again over dp: half of a half, and a whole
# bias' half. FSDP2 gathers and reduces what a tp rank has, never the other one's.
@pytest.mark.world_size(mesh={"dp": 2, "tp": 2})
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning")  # local parts are views
@pytest.mark.parametrize("right", [True, False], ids=["sharded", "forgotten"])
def test_with_fsdp2(right, device_mesh, shardcheck):
    model = in_pairs(device_mesh["tp"])
    for layer in [*model, model] if right else []:
        fully_shard(layer, mesh=device_mesh["dp"])
    reading = measured(shardcheck, model, AdamW(model.parameters()))
    shardcheck.check(reading, collectives(all_reduce=8, group="tp"))
    sharding = collectives(all_gather=16, reduce_scatter=8, group="dp")
    if right:
        shardcheck.check(reading, sharding)
        shardcheck.check(reading, max_memory(params=CUT[2] // 2))
        assert reading.collectives.group("dp").total.bytes == 3 * CUT[2]
        return
    # Two replicas that train apart: the state is whole, and nothing goes over dp.
    with caught("collectives(reduce_scatter, group='dp'): 8 calls were expected", "8 fewer"):
        shardcheck.check(reading, sharding)
    with caught(f"{CUT[2]:,} B (1.1 MB), {CUT[2] // 2:,} B (100.0 %) above"):
        shardcheck.check(reading, max_memory(params=CUT[2] // 2))


# A44, pytorch #167106: what needs no communication has none, and a local result.
@pytest.mark.world_size(mesh={"dp": 2, "sp": 2})
@pytest.mark.collectives(region="local")
def test_a44_a_local_product_gathers_nothing(device_mesh, shardcheck):
    hidden = distribute_tensor(torch.randn(8, 4, 8), device_mesh, [Shard(0), Shard(1)])
    vector = distribute_tensor(torch.randn(8), device_mesh, [Replicate(), Replicate()])
    with shardcheck.measure(region="local") as reading:
        product = hidden @ vector
    assert product.placements == (Shard(0), Shard(1))
    assert product.to_local().shape == (4, 2)
    # Somebody makes it whole before: along one axis, then along the other.
    with shardcheck.measure(region="gathered") as reading:
        hidden.redistribute(placements=[Replicate(), Replicate()]) @ vector
    with caught(
        "1 x all_gather of float32 [8, 2, 8] (512 B) in group 'sp', forward at ",
        "1 x all_gather of float32 [8, 4, 8] (1,024 B) in group 'dp', forward at ",
    ):
        shardcheck.check(reading, collectives())
