"""One way to take a step: live figures depend on what a test holds, so all hold the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.optim import Optimizer

# 526,336 parameters of M8 x 4 B.
P = 2_105_344


def step(model: nn.Module, optimizer: Optimizer) -> None:
    """Train M8 on a batch of 32; neither the batch nor the loss outlives the step."""
    batch = torch.randn(32, 256)
    optimizer.zero_grad()
    loss = model(batch).sum()
    loss.backward()
    optimizer.step()


def third(shardcheck: Any, take_step: Callable[[], object], *watched: object) -> Any:
    """Take three steps and measure the last: lazy states and buckets are settled by then."""
    take_step()
    take_step()
    with shardcheck.measure(*watched) as measurement:
        take_step()
    return measurement


def measure_third(shardcheck: Any, model: nn.Module, optimizer: Optimizer) -> Any:
    """Train M8 and measure the third step."""
    return third(shardcheck, lambda: step(model, optimizer), model, optimizer)
