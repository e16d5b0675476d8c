"""Saved checkpoints: a full state dict on rank 0, or shards by torch.distributed.checkpoint.

M8 has P = 2,105,344 B under FSDP2, its largest parameter W = 262,144 B, a bias 1,024 B.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from mistakes import caught
from models import m8, m8_batch, train
from steps import P
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from pytest_shardcheck import max_collectives, max_memory

W = 256 * 256 * 4
BIAS = 256 * 4

pytestmark = pytest.mark.world_size(2, 4)


def trained(mesh):
    model = m8()
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
    optimizer = AdamW(model.parameters())
    train(model, optimizer, m8_batch(), steps=2)
    optimizer.zero_grad()
    return model, optimizer


# A full state dict: each parameter is gathered on every rank, one after another. Rank 0 keeps them.
FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)


@pytest.mark.max_memory(peak_above_start=P, rank=0)
@pytest.mark.memory(growth=P, rank=0)
@pytest.mark.max_memory(peak_above_start=W, rank=slice(1, None))
@pytest.mark.memory(growth=0, rank=slice(1, None))
@pytest.mark.collectives(all_gather=16)
@pytest.mark.max_collectives(bytes=P)
def test_full_model_on_rank_0(device_mesh, shardcheck, world):
    model, _ = trained(device_mesh)
    with shardcheck.measure(model):
        full = get_model_state_dict(model, options=FULL)
    assert len(full) == (0 if world.rank else 16)


@pytest.mark.max_memory(peak_above_start=2 * P, rank=0)  # two moments; each rank has the counts
@pytest.mark.max_memory(peak_above_start=W, rank=slice(1, None))
@pytest.mark.collectives(all_gather=32)
def test_full_optimizer_on_rank_0(device_mesh, shardcheck):
    model, optimizer = trained(device_mesh)
    with shardcheck.measure(model, optimizer):
        full = get_optimizer_state_dict(model, optimizer, options=FULL)
    del full


# Without cpu_offload every rank keeps what it gathered. Rank 0 alone shows nothing of it.
def test_full_model_on_every_rank(device_mesh, shardcheck, world):
    model, _ = trained(device_mesh)
    with shardcheck.measure(model) as measurement:
        full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    assert len(full) == 16
    if world.rank > 0:
        with caught(
            "2,105,344 B (2.1 MB)",
            "communication buffers 2,105,344 B",
            "8 x 262,144 B float32 [256, 256] communication buffers, at ",
        ):
            shardcheck.check(measurement.reading, max_memory(peak_above_start=W))


def load_full(shardcheck, mesh, path, state, *, broadcast):
    model, _ = trained(mesh)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
    with shardcheck.measure(model) as measurement:
        full = torch.load(path) if state else {}
        set_model_state_dict(model, full, options=options)
        del full
    return measurement.reading


# Rank 0 reads the file and sends one parameter after another. Else each rank reads all of it.
def test_a_full_model_is_loaded_by_rank_0(device_mesh, shardcheck, world, tmp_path):
    path = tmp_path / "full.pt"
    if world.rank == 0:
        torch.save(m8().state_dict(), path)
    dist.barrier()
    right = load_full(shardcheck, device_mesh, path, world.rank == 0, broadcast=True)
    most = max_memory(peak_above_start=(W if world.rank else P) + BIAS)
    shardcheck.check(right, most)
    wrong = load_full(shardcheck, device_mesh, path, state=True, broadcast=False)
    with caught(
        f"{P + P // world.size:,} B",  # and the shards that are cut of it
        "8 x 262,144 B float32 [256, 256]",
        "test_saved_checkpoints.py:",
    ):
        shardcheck.check(wrong, most)


# Shards: each rank writes and reads its own. What is sent are plans, pickled.
PLANS = 100_000


@pytest.mark.memory(growth=0)
@pytest.mark.max_memory(peak_above_start=0, region="state dict")  # the shards themselves
@pytest.mark.collectives(region="state dict")
@pytest.mark.max_memory(peak_above_start=PLANS, region="save")
@pytest.mark.collectives(all_gather=2, gather=2, scatter=2, broadcast=3, region="save")
@pytest.mark.max_collectives(bytes={"all_gather": 100}, region="save")
# A weight's shard as it is read, and the one before it.
@pytest.mark.max_memory(peak_above_start={2: W + PLANS, 4: W // 2 + PLANS}, region="load")
@pytest.mark.max_collectives(bytes=PLANS, region="load")
def test_shards(device_mesh, shardcheck, world, tmp_path):
    model, optimizer = trained(device_mesh)
    with shardcheck.measure(model, optimizer, region="state dict"):
        params, moments = get_state_dict(model, optimizer)
        state = {"model": params, "optimizer": moments}
    before = model[0].weight.to_local().clone()
    with shardcheck.measure(model, optimizer, region="save"):
        dcp.save(state, checkpoint_id=tmp_path / "shards")
    assert len([*(tmp_path / "shards").glob("*.distcp")]) == world.size
    with torch.no_grad():
        model[0].weight.zero_()
    with shardcheck.measure(model, optimizer, region="load"):
        dcp.load(state, checkpoint_id=tmp_path / "shards")
        set_state_dict(model, optimizer, model_state_dict=params, optim_state_dict=moments)
    assert torch.equal(model[0].weight.to_local(), before)


# The same call with whole tensors writes a checkpoint, too: after every rank has gathered it all.
def test_whole_tensors_in_a_checkpoint_of_shards(device_mesh, shardcheck):
    model, _ = trained(device_mesh)
    with shardcheck.measure(model, region="state dict") as measurement:
        state = {name: param.full_tensor() for name, param in model.named_parameters()}
    with caught("16 calls, 16 more", "all_gather", "test_saved_checkpoints.py:"):
        shardcheck.check(measurement.reading, max_collectives(count=0))
    with caught(f"{P:,} B", "8 x 262,144 B float32 [256, 256]"):
        shardcheck.check(measurement.reading, max_memory(peak_above_start=0))
    del state
