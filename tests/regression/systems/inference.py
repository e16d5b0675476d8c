"""Rows of forwards without a backward."""

from __future__ import annotations

import torch
from models import m8
from torch.distributed.fsdp import fully_shard

from .base import System, Training


def inference(model, without):
    def step():
        with without():
            model(torch.randn(32, 256))

    return Training(step=step, watched=(model,))


def plain(without):
    return lambda _: inference(m8(), without)


def fsdp2(*, reshard):
    def build(mesh):
        model = m8()
        for layer in [*model, model]:
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
        return inference(model, torch.no_grad)

    return build


SYSTEMS = [
    System(name="no_grad", page="inference", build=plain(torch.no_grad)),
    System(name="eval without no_grad", page="inference", build=plain(torch.enable_grad)),
    System(name="no_grad, FSDP2, reshard", page="inference", build=fsdp2(reshard=True)),
    System(name="no_grad, FSDP2, no reshard", page="inference", build=fsdp2(reshard=False)),
]
