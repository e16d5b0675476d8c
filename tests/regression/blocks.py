"""Blocks under activation checkpoints, and one way to train them.

L = 4 blocks d -> 4d -> d with ReLU, batch b = 32, d = 256, fp32. A block saves its input (b d) and
the ReLU's output, for itself and for the second layer (one tensor of 4 b d): 20 L b d = 655,360 B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

L, B, D = 4, 32, 256
INPUT = 4 * B * D  # of a block, and its output
HIDDEN = 4 * INPUT  # between its two layers
WHOLE = L * (INPUT + HIDDEN)
INPUTS = L * INPUT  # all that checkpoints around each block keep
PARAMETERS = L * 4 * (8 * D * D + 5 * D)


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))


class Blocks(nn.Module):
    """Blocks that `call` runs: by itself, or under a checkpoint."""

    def __init__(self, call: Callable[..., Any] | None = None, make: Any = block) -> None:
        super().__init__()
        self.call = call
        self.blocks = nn.ModuleList(make() for _ in range(L))

    def forward(self, hidden: Tensor) -> Tensor:
        for one in self.blocks:
            hidden = self.call(one, hidden) if self.call else one(hidden)
        return hidden


def reentrant(module: Any, *args: Any) -> Any:
    return checkpoint(module, *args, use_reentrant=True)


def checkpointed(module: Any, *args: Any, **options: Any) -> Any:
    return checkpoint(module, *args, use_reentrant=False, **options)


def batch() -> Tensor:
    """Return a batch that wants a gradient: a reentrant checkpoint gives none to anyone else."""
    return torch.randn(B, D, requires_grad=True)


def step(model: nn.Module) -> None:
    model.zero_grad()
    model(batch()).sum().backward()


def measure_third(shardcheck: Any, model: nn.Module, take: Any = step) -> Any:
    take(model)
    take(model)
    with shardcheck.measure(model) as measurement:
        take(model)
    return measurement.reading
