"""What a simulated world can't do, said where it is asked for."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pytest_shardcheck.vocabulary.errors import NoValueError, UsageError

from .asking import HOLDS_NOTHING, asking_line
from .patches import replace


def install(stack: ExitStack) -> None:
    """Refuse by name what would crash, or measure something else."""
    # What compiles for inductor, which is loaded only then; other backends run torch's operators.
    replace(stack, torch._TorchCompileInductorWrapper, "__call__", lambda _: _compile)
    replace(stack, FakeTensor, "numpy", lambda _: _numpy)
    replace(stack, torch, "save", _save)


def _compile(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "torch.compile with inductor in a simulated world: its kernels need tensors with data. "
        'Compile with backend="aot_eager" there, whose graphs run torch\'s operators, or '
        "simulate the model uncompiled"
    )


def _save(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def saving(*args: Any, **kwargs: Any) -> None:
        try:
            save(*args, **kwargs)
        except (AttributeError, TypeError, RuntimeError, pickle.PicklingError) as error:
            raise NoValueError(
                f"{asking_line()}: torch.save() needs what tensors hold, and {HOLDS_NOTHING}"
            ) from error

    return saving


def _numpy(*_: Any, **__: Any) -> NoReturn:
    raise NoValueError(f"{asking_line()}: numpy() needs what a tensor holds, and {HOLDS_NOTHING}")
