"""Rows of FSDP1 and FSDP2."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, ShardingStrategy
from torch.optim import AdamW
from wrapped_fsdp import fsdp1_m8, fsdp2_m8

from .base import System, built


def fsdp1(_, **options):
    model = fsdp1_m8(**options)
    return model, AdamW(model.parameters())


def fsdp2(mesh, **options):
    model = fsdp2_m8(mesh, **options)
    return model, AdamW(model.parameters())


def hybrid(mesh):
    axes = {"mesh_shape": (mesh.size() // 2, 2), "mesh_dim_names": ("replicate", "shard")}
    return fsdp2(init_device_mesh("cpu", **axes))


# NCCL makes none, and neither do the groups of a simulated world.
GLOOS_COPY = "gloo copies what reduce_scatter gets"
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

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
    System(name="FSDP1, one flat unit", page="fsdp1", build=built(fsdp1, layers=False)),
    System(
        name="FSDP1, original parameters", page="fsdp1", build=built(fsdp1, use_orig_params=True)
    ),
    System(name="FSDP2, no reshard", page="fsdp2", build=built(fsdp2, reshard_after_forward=False)),
    System(name="FSDP2, reshard", page="fsdp2", build=built(fsdp2, reshard_after_forward=True)),
    System(
        name="FSDP2, one unit",
        page="fsdp2",
        build=built(fsdp2, layers=False),
        other_peak=GLOOS_COPY,
    ),
    System(
        name="FSDP2, bf16 reduced in fp32",
        page="fsdp2",
        build=built(fsdp2, mp_policy=BF16),
        other_peak=GLOOS_COPY,
    ),
    System(name="FSDP2, replicas of two shards", page="fsdp2", build=built(hybrid), sizes=(4,)),
    System(
        name="FSDP2, reshard to two",
        page="fsdp2",
        build=built(fsdp2, reshard_after_forward=2),
        sizes=(4,),
    ),
]
