"""Rows of tensor, sequence and expert parallel."""

from __future__ import annotations

import torch
import torch.distributed as dist
from models import m8
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.optim import AdamW

from .base import System, Training, built, trained


def in_pairs(mesh, column=ColwiseParallel, row=RowwiseParallel):
    """Cut M8's even layers by columns and its odd ones by rows; `row` None leaves those whole."""
    plan = {str(n): column() for n in range(0, 8, 2)}
    plan |= {str(n): row() for n in range(1, 8, 2)} if row else {}
    return parallelize_module(m8(), mesh, plan)


def tensor_parallel(mesh):
    model = in_pairs(mesh)
    return model, AdamW(model.parameters())


def sequence_parallel(mesh):
    """Between the pairs each rank has its own rows of the batch of 32."""
    model = in_pairs(
        mesh,
        lambda: ColwiseParallel(input_layouts=Shard(0)),
        lambda: RowwiseParallel(output_layouts=Shard(0)),
    )
    optimizer = AdamW(model.parameters())

    def step():
        batch = torch.randn(32 // mesh.size(), 256)
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return Training(step=step, watched=(model, optimizer))


def tensor_parallel_and_fsdp2(_):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = in_pairs(mesh["tp"])
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh["dp"])
    return trained(model, AdamW(model.parameters()))


class Experts(nn.Module):
    """M8's layers as eight experts, dealt out; a rank's tokens come sorted by their expert.

    `routed` says how many tokens go to each of the eight.
    """

    def __init__(self, routed, group=None):
        super().__init__()
        self.group = group or dist.group.WORLD
        self.routed = torch.tensor(routed)
        self.mine = nn.ModuleList(m8()[: 8 // self.group.size()])

    def forward(self, tokens):
        sent = self.routed.view(self.group.size(), -1)  # to each rank, for each of its experts
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        of, into = sent.sum(1).tolist(), received.sum(1).tolist()
        here = all_to_all_single_autograd(tokens, into, of, self.group)
        parts = here.split(received.flatten().tolist())
        done = [self.mine[n % len(self.mine)](part) for n, part in enumerate(parts)]
        return all_to_all_single_autograd(torch.cat(done), of, into, self.group)


ROUTED = (10, 7, 5, 4, 3, 2, 1, 0)  # of 32 tokens


def experts(_):
    model = Experts(ROUTED)
    return model, AdamW(model.parameters())


SYSTEMS = [
    System(name="Tensor parallel", page="tensor-parallel", build=built(tensor_parallel)),
    System(name="Sequence parallel", page="tensor-parallel", build=sequence_parallel),
    System(
        name="Tensor parallel x FSDP2",
        page="tensor-parallel",
        build=tensor_parallel_and_fsdp2,
        sizes=(4,),
    ),
    System(
        name="Expert parallel",
        page="tensor-parallel",
        build=built(experts),
        unsimulated="how many tokens arrive is a value",
        counted=False,  # CommDebugMode raises in a module's second forward
    ),
]
