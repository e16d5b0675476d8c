"""Rows of activation checkpointing: M8 as four pairs of layers, or as one."""

from __future__ import annotations

from functools import partial

import torch
from models import m8
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from .base import System, built


class Checkpointed(nn.Sequential):
    """M8, `size` layers under each checkpoint."""

    def __init__(self, size, **options):
        super().__init__(*m8())
        self.size = size
        self.options = {"use_reentrant": False, **options}

    def forward(self, hidden):
        layers = list(self)
        for start in range(0, len(layers), self.size):
            hidden = checkpoint(run, layers[start : start + self.size], hidden, **self.options)
        return hidden


def run(layers, hidden):
    for layer in layers:
        hidden = layer(hidden)
    return hidden


def all_products(_, operator, *args, **options):
    del args, options
    kept = operator is torch.ops.aten.addmm.default
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def ddp(_, **options):
    model = DistributedDataParallel(Checkpointed(**options))
    return model, AdamW(model.parameters())


def fsdp2(mesh, **options):
    model = Checkpointed(**options)
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    return model, AdamW(model.parameters())


SYSTEMS = [
    System(
        name="DDP, a checkpoint of two layers",
        page="activation-checkpointing",
        build=built(ddp, size=2),
    ),
    System(
        name="DDP, one checkpoint around all",
        page="activation-checkpointing",
        build=built(ddp, size=8),
    ),
    System(
        name="DDP, selective checkpoints that keep all products",
        page="activation-checkpointing",
        build=built(
            ddp, size=2, context_fn=partial(create_selective_checkpoint_contexts, all_products)
        ),
    ),
    System(
        name="FSDP2, a checkpoint of two layers",
        page="activation-checkpointing",
        build=built(fsdp2, size=2),
        # A checkpoint keeps the generator's state, 5,056 B, which no operator makes.
        share=(0.998, 1.001),
    ),
]
