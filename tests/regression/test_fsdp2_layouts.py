"""FSDP2's layouts: replicas of shards, shards that are not equal, tied weights, large tables."""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import Tied, train_measured
from steps import P, measure_third, third
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.optim import SGD, AdamW
from wrapped_fsdp import fsdp2_m8

from pytest_shardcheck import collectives, max_collectives, max_memory, memory

U = P // 8

HYBRID = pytest.mark.world_size(mesh={"replicate": 2, "shard": 2})
REPLICAS = collectives(all_reduce=8, group="replicate")


# Divided by the two ranks of the shard axis, not by the four of the world; the parts of the
# gradients are then averaged over the replicas: a ring of two sends 3 P / 2 and P / 2.
@HYBRID
@pytest.mark.memory(params=P // 2, grads=P // 2, optimizer=P + 16 * 4)
@pytest.mark.memory(peak=5_131_352)  # that of ZeRO-3 at two ranks, and the larger mesh
@pytest.mark.collectives(all_gather=16, reduce_scatter=8, group="shard")
@pytest.mark.collectives(all_reduce=8, group="replicate")
@pytest.mark.max_collectives(wire_bytes=3 * P // 2, group="shard")
@pytest.mark.max_collectives(wire_bytes=P // 2, group="replicate")
def test_hybrid_shard(device_mesh, shardcheck):
    model = fsdp2_m8(device_mesh)
    measure_third(shardcheck, model, AdamW(model.parameters()))


# Given the shard axis alone, each replica trains a model of its own: the state is the same.
@HYBRID
def test_replicas_are_never_averaged(device_mesh, shardcheck):
    state = memory(params=P // 2, grads=P // 2)
    for mesh in (device_mesh, device_mesh["shard"]):
        model = fsdp2_m8(mesh)
        reading = measure_third(shardcheck, model, AdamW(model.parameters())).reading
        shardcheck.check(reading, state)
        if mesh is device_mesh:
            shardcheck.check(reading, REPLICAS)
    with caught("collectives(all_reduce, group='replicate'): 8 calls", "0 calls, 8 fewer"):
        shardcheck.check(reading, REPLICAS)


# The first axis replicates, whatever it is called.
@HYBRID
def test_axes_are_swapped(process_group, shardcheck):
    model = fsdp2_m8(init_device_mesh("cpu", (2, 2), mesh_dim_names=("inner", "outer")))
    reading = measure_third(shardcheck, model, AdamW(model.parameters())).reading
    with caught("collectives(all_gather, group='inner'): 16 calls", "8 x all_reduce", "'inner'"):
        shardcheck.check(reading, collectives(all_gather=16, reduce_scatter=8, group="inner"))


# 5 rows of 20 B on 4 ranks: 2, 2, 1, 0. State has these; storages of parameters and gradients are
# padded to two rows, and live memory has that beside 16 B of mesh and 40 B of batch. Messages are
# padded as well: 8 rows.
@pytest.mark.world_size(4)
@pytest.mark.memory(params=40, grads=40, optimizer=84, live=220, rank=slice(0, 2))
@pytest.mark.memory(params=20, grads=20, optimizer=44, live=180, rank=2)
@pytest.mark.memory(params=0, grads=0, optimizer=4, live=140, rank=3)  # an empty shard's step count
@pytest.mark.max_collectives(bytes={"all_gather": 160, "reduce_scatter": 160})
def test_uneven_shards(device_mesh, shardcheck):
    model = fully_shard(nn.Linear(5, 5, bias=False), mesh=device_mesh)
    train_measured(shardcheck, model, AdamW(model.parameters()), torch.randn(2, 5))


class Scaled(nn.Module):
    """A parameter of one row: 4,096 B."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 1024))

    def forward(self, batch):
        return batch * self.scale


def columns(_):
    return Shard(1)


@pytest.mark.world_size(4)
@pytest.mark.memory(params=1_024, grads=1_024)
@pytest.mark.max_collectives(largest=4_096)
def test_one_row_is_sharded_by_columns(device_mesh, shardcheck):
    model = fully_shard(Scaled(), mesh=device_mesh, shard_placement_fn=columns)
    train_measured(shardcheck, model, SGD(model.parameters()), torch.ones(2, 1024))


# By rows, one rank has it all, and every message has four rows, three of them padding.
@pytest.mark.world_size(4)
def test_one_row_is_on_one_rank(device_mesh, shardcheck, world):
    model = fully_shard(Scaled(), mesh=device_mesh)
    with shardcheck.measure(model) as reading:
        model(torch.ones(2, 1024)).sum().backward()
    held = "4,096 B (4.1 kB), 3,072 B (300.0 %) above" if world.rank == 0 else "0 B, 1,024 B"
    with caught("memory(params): 1,024 B (1.0 kB) was expected", f"rank {world.rank}: {held}"):
        shardcheck.check(reading, memory(params=1_024))
    with caught("the ceiling of 4,096 B", "1 x all_gather of float32 [4096] (16,384 B)"):
        shardcheck.check(reading, max_collectives(largest=4_096))


@pytest.mark.world_size(8)
@pytest.mark.memory(params=5_120, region="whole")  # 4,096 B of both owners, once, + 1,024 B
@pytest.mark.memory(params=640, region="sharded")  # and still tied
@pytest.mark.max_collectives(bytes={"all_gather": 5_120}, region="sharded")
def test_a31_tied_weights_count_once(device_mesh, shardcheck):
    model = Tied()
    with shardcheck.measure(model, region="whole"):
        pass
    fully_shard(model, mesh=device_mesh)
    with shardcheck.measure(model, region="sharded"):
        model(torch.arange(8)).sum().backward()


@pytest.mark.world_size(2)
def test_a31_weights_are_tied_no_more(device_mesh, shardcheck):
    model = Tied()
    model.out.weight = nn.Parameter(model.emb.weight.clone())  # as `to_empty` and loading do
    fully_shard(model, mesh=device_mesh)
    with shardcheck.measure(model) as reading:
        model(torch.arange(8)).sum().backward()
    with caught("memory(params): 2,560 B", "params 4,608 B, grads 4,608 B"):
        shardcheck.check(reading, memory(params=(4_096 + 1_024) // 2))
    with caught("9,216 B", "1 x all_gather of float32 [2304] (9,216 B)"):
        shardcheck.check(reading, max_collectives(bytes={"all_gather": 5_120}))


# Two copies that train apart; torch says so in the first forward, 2.13 at the earliest.
@pytest.mark.world_size(2)
def test_a31_tied_weights_in_two_units(device_mesh, shardcheck):
    model = Tied()
    for unit in (model.emb, model.out, model):
        fully_shard(unit, mesh=device_mesh)
    with shardcheck.measure(model) as reading:
        pass
    with caught("memory(params): 2,560 B", "params 4,608 B"):
        shardcheck.check(reading, memory(params=(4_096 + 1_024) // 2))
    with pytest.raises(ValueError, match=r"'out\.weight' is shared"):
        model(torch.arange(8))


class Tables(nn.Module):
    """Two Embedding(1024, 16) of 65,536 B."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Embedding(1024, 16), nn.Embedding(1024, 16)

    def forward(self, tokens):
        return self.a(tokens) + self.b(tokens)


def tables(mesh, *, own_units):
    model = Tables()
    for unit in (*((model.a, model.b) if own_units else ()), model):
        fully_shard(unit, mesh=mesh)
    return model


# NeMo Automodel PR 3708, scaled (A30).
@pytest.mark.world_size(2, 4)
@pytest.mark.max_collectives(largest={"reduce_scatter": 65_536})
@pytest.mark.max_collectives(bytes={"reduce_scatter": 131_072})
@pytest.mark.collectives(all_gather=4, reduce_scatter=2)
def test_a30_each_table_is_a_unit(device_mesh, shardcheck):
    model = tables(device_mesh, own_units=True)
    train_measured(shardcheck, model, SGD(model.parameters()), torch.arange(4))


@pytest.mark.world_size(2)
def test_a30_two_tables_in_one_unit(device_mesh, shardcheck):
    model = tables(device_mesh, own_units=False)
    with shardcheck.measure(model) as reading:
        model(torch.arange(4)).sum().backward()
    shardcheck.check(reading, max_collectives(bytes={"reduce_scatter": 131_072}))
    with caught(
        "131,072 B", "1 x reduce_scatter of float32 [32768] (131,072 B)", "65,536 B (100.0 %) above"
    ):
        shardcheck.check(reading, max_collectives(largest={"reduce_scatter": 65_536}))


def of_one_shard(mesh, factor=None):
    """Four Linear(64, 64) of W = 16,384 B, each a unit and a root of its own."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
        if factor:
            layer.set_gradient_divide_factor(factor)
    return model


# A29, pytorch #195732: where one rank is all shards nothing is reduced, yet a factor divides into a
# tensor of its own. The peak was in the first layer's backward, with its whole weight, the gradient
# of that, and its output's of 512 B; now it comes after, with what was to be reduced, the sum and
# the quotient. The published 147,976 B and 163,848 B are without the batch, its gradient, the list
# of ranks of the mesh, and what three other roots keep of their reductions.
@pytest.mark.world_size(1)
def test_a29_dividing_gradients_of_one_shard_copies_them(device_mesh, shardcheck):
    def read(factor):
        model = of_one_shard(device_mesh, factor)

        def step():
            model.zero_grad()
            model(torch.randn(2, 64, requires_grad=True)).sum().backward()

        return third(shardcheck, step, model).reading

    beside = 2 * 512 + 4 + 3 * 16_384
    right = read(None)
    shardcheck.check(right, memory(peak=147_976 + beside))
    wrong = read(2.0)
    for reading in (right, wrong):
        shardcheck.check(reading, collectives())
    with caught(
        f"{163_848 + beside:,} B (214.0 kB), 15,872 B (8.0 %) above",
        "2 x 16,384 B float32 [4096] temporaries, in 0 at",
    ):
        shardcheck.check(wrong, max_memory(peak=147_976 + beside))
