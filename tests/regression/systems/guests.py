"""Rows of guests that own the loop."""

from __future__ import annotations

import torch
from models import m8
from torch.optim import AdamW

from .base import System, Training


def accelerate(_):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = m8()
    model, optimizer = accelerator.prepare(model, AdamW(model.parameters()))

    def step():
        batch = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = model(batch).sum()
        accelerator.backward(loss)
        optimizer.step()

    return Training(step=step, watched=(model, optimizer))


SYSTEMS = [
    System(
        name="Accelerate, on the CPU",
        page="guests",
        build=accelerate,
        packages=("accelerate",),
    ),
]
