"""Every way to train that the suite knows, as rows of the generated tables."""

from __future__ import annotations

from itertools import chain

from . import (
    checkpointing,
    compiled,
    ddp,
    deepspeed_zero,
    fsdp,
    guests,
    inference,
    optimizers,
    parallel,
    pipelines,
)
from .base import System, Training

__all__ = ["SYSTEMS", "System", "Training"]

SYSTEMS: list[System] = list(
    chain.from_iterable(
        module.SYSTEMS
        for module in (
            ddp,
            fsdp,
            parallel,
            pipelines,
            checkpointing,
            optimizers,
            inference,
            compiled,
            deepspeed_zero,
            guests,
        )
    )
)
