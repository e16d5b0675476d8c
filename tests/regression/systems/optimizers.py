"""Rows of optimizers: M8 under DDP, or sharded with an optimizer in backward."""

from __future__ import annotations

import torch
from models import m8
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adafactor, AdamW

from .base import System, Training, built


def ddp(_, *, kind, **options):
    model = DistributedDataParallel(m8())
    return model, kind(model.parameters(), **options)


def in_backward(mesh):
    """Step in the hook of each shard, which FSDP2 calls when it has reduced the gradient."""
    model = m8()
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    optimizers = {param: AdamW([param]) for param in model.parameters()}

    def hook(param):
        optimizers[param].step()
        optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(hook)

    def step():
        model(torch.randn(32, 256)).sum().backward()

    return Training(step=step, watched=(model, [*optimizers.values()]))


def row(name, kind, unsimulated="", **options):
    build = built(ddp, kind=kind, **options)
    return System(name=f"DDP, {name}", page="optimizers", build=build, unsimulated=unsimulated)


SYSTEMS = [
    row("AdamW foreach", AdamW, foreach=True),
    row("AdamW fused", AdamW, fused=True),
    row("SGD with momentum", SGD, lr=0.1, momentum=0.9),
    row("Adafactor", Adafactor, unsimulated="its step reads the norm of each parameter"),
    System(name="FSDP2, AdamW in backward", page="optimizers", build=in_backward),
]
