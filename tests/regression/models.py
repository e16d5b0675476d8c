"""The models of the regression suite and one way to train each: figures depend on both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def m8() -> nn.Sequential:
    """Eight Linear(256, 256): 16 parameters of P = 2,105,344 B in fp32."""
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(8)))


def m8_batch() -> Tensor:
    return torch.randn(32, 256)


class Net16(nn.Module):
    """emb, three blocks of two, head: 8 matrices of 16 x 16, no biases, P = 8,192 B."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = _matrix()
        self.blocks = nn.ModuleList(nn.Sequential(_matrix(), _matrix()) for _ in range(3))
        self.head = _matrix()

    def forward(self, batch: Tensor) -> Tensor:
        hidden = self.emb(batch)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def net16_batch() -> Tensor:
    return torch.randn(4, 16)


class Tied(nn.Module):
    """Embedding(64, 16) tied to Linear(16, 64), Linear(16, 16) between: 4,096 + 1,024 B."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(64, 16)
        self.mid = _matrix()
        self.out = nn.Linear(16, 64, bias=False)
        self.out.weight = self.emb.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.mid(self.emb(tokens)))


def train(model: nn.Module, optimizer: Optimizer, batch: Tensor, *, steps: int) -> None:
    """Take steps, and leave the last one's gradients in place."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()


def train_measured(shardcheck: Any, model: nn.Module, optimizer: Optimizer, batch: Tensor) -> None:
    """Take three steps and measure the last: lazy states and DDP's buckets are settled by then."""
    train(model, optimizer, batch, steps=2)
    with shardcheck.measure(model, optimizer):
        train(model, optimizer, batch, steps=1)


def _matrix() -> nn.Linear:
    return nn.Linear(16, 16, bias=False)
