"""Rows of FSDP1 and FSDP2."""

from __future__ import annotations

from models import m8
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.optim import AdamW

from .base import System, built


def fsdp1(_, *, strategy, **options):
    options = {"sharding_strategy": strategy, "device_id": "cpu", **options}
    model = m8()
    for number, layer in enumerate(model):
        model[number] = FullyShardedDataParallel(layer, **options)
    model = FullyShardedDataParallel(model, **options)
    return model, AdamW(model.parameters())


def fsdp2(mesh, *, reshard, **options):
    model = m8()
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard, **options)
    return model, AdamW(model.parameters())


SYSTEMS = [
    System(
        name="FSDP1, SHARD_GRAD_OP",
        page="fsdp1",
        build=built(fsdp1, strategy=ShardingStrategy.SHARD_GRAD_OP),
    ),
    System(
        name="FSDP1, FULL_SHARD",
        page="fsdp1",
        build=built(fsdp1, strategy=ShardingStrategy.FULL_SHARD),
    ),
    System(name="FSDP2, no reshard", page="fsdp2", build=built(fsdp2, reshard=False)),
    System(name="FSDP2, reshard", page="fsdp2", build=built(fsdp2, reshard=True)),
]
