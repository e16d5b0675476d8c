"""Rows of torch.compile, with the backend whose graphs run torch's operators."""

from __future__ import annotations

import warnings

import torch
from models import m8
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from .base import System, built


class Stack(nn.Module):
    """M8 in a class of the user's: torch compiles no frame of its own files, Sequential's too."""

    def __init__(self):
        super().__init__()
        self.layers = m8()

    def forward(self, batch):
        return self.layers(batch)


def ddp(_):
    model = DistributedDataParallel(torch.compile(Stack(), backend="aot_eager"))
    return model, AdamW(model.parameters())


def fsdp2(mesh):
    # torch's own, while it compiles: it asks what FSDP gathered for its gradient.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
    model = m8()
    for number, layer in enumerate(model):
        model[number] = torch.compile(layer, backend="aot_eager")
        fully_shard(model[number], mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    return model, AdamW(model.parameters())


SYSTEMS = [
    System(name="DDP of a compiled model", page="compile", build=built(ddp)),
    System(name="FSDP2 of compiled layers, reshard", page="compile", build=built(fsdp2)),
]
