"""Rows of DistributedDataParallel and of ZeroRedundancyOptimizer under it."""

from __future__ import annotations

import torch
from models import m8
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from .base import System, Training, built, trained


def ddp(_, *, hook=None, **options):
    model = DistributedDataParallel(m8(), **options)
    if hook is not None:
        model.register_comm_hook(None, hook)
    return model, AdamW(model.parameters())


def zero1(_, *, as_views=False):
    model = DistributedDataParallel(m8(), gradient_as_bucket_view=as_views)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), AdamW, parameters_as_bucket_view=as_views
    )
    return model, optimizer


def static_graph(mesh):
    training = trained(*ddp(mesh, static_graph=True))
    training.step()  # its buckets are rebuilt in the third step, all others' in the second
    return training


def accumulated(mesh):
    model, optimizer = ddp(mesh)

    def micro_batch():
        model(torch.randn(32, 256)).sum().backward()

    def step():
        optimizer.zero_grad()
        with model.no_sync():
            micro_batch()
        micro_batch()
        optimizer.step()

    return Training(step=step, watched=(model, optimizer))


SYSTEMS = [
    System(name="DDP", page="ddp", build=built(ddp)),
    System(
        name="DDP, gradients as bucket views",
        page="ddp",
        build=built(ddp, gradient_as_bucket_view=True),
        share=(0.996, 0.997),  # see below
    ),
    # The gradient of a sum is one number, expanded: `mm` clones it (32,768 B) inside the operator.
    # Here and above the peak stands at the first of these in backward (test_ddp.py).
    System(
        name="DDP, two micro-batches",
        page="ddp",
        build=accumulated,
        counted=False,  # CommDebugMode raises in a module's second forward
        share=(0.997, 0.998),
    ),
    System(
        name="DDP, unused parameters looked for",
        page="ddp",
        build=built(ddp, find_unused_parameters=True),
    ),
    System(name="DDP, static graph", page="ddp", build=static_graph),
    System(
        name="DDP, fp16_compress_hook",
        page="ddp",
        build=built(ddp, hook=fp16_compress_hook),
        # gloo's worker may let go of a half-precision bucket after the next one is allocated: under
        # load the allocator has seen both at once. The counter is settled, and never has.
        share=(0.91, 1.001),
    ),
    System(name="ZeroRedundancyOptimizer under DDP", page="zero1", build=built(zero1)),
    System(
        name="ZeroRedundancyOptimizer, all as bucket views",
        page="zero1",
        build=built(zero1, as_views=True),
    ),
]
