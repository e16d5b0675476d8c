"""Rows of DistributedDataParallel and of ZeroRedundancyOptimizer under it."""

from __future__ import annotations

from models import m8
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from .base import System, built


def ddp(_, **options):
    model = DistributedDataParallel(m8(), **options)
    return model, AdamW(model.parameters())


def zero1(_, **options):
    model = DistributedDataParallel(m8(), **options)
    return model, ZeroRedundancyOptimizer(model.parameters(), AdamW)


SYSTEMS = [
    System(name="DDP", page="ddp", build=built(ddp)),
    System(
        name="DDP, gradients as bucket views",
        page="ddp",
        build=built(ddp, gradient_as_bucket_view=True),
    ),
    System(name="ZeroRedundancyOptimizer under DDP", page="zero1", build=built(zero1)),
]
