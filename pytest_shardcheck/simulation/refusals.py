"""What a simulated world can't do, said where it is asked for."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pytest_shardcheck.vocabulary.errors import NoValueError, UsageError

from .patches import replace

_GUARD = "guard it with `if not world.simulated:` (fixture `world`)"


def install(stack: ExitStack) -> None:
    """Refuse by name what would crash, or measure something else."""
    # What compiles for inductor, which is loaded only then; other backends run torch's operators.
    replace(stack, torch._TorchCompileInductorWrapper, "__call__", lambda _: _compile)
    replace(stack, FakeTensor, "numpy", lambda _: _numpy)
    pipelining = sys.modules.get("torch.distributed.pipelining.stage")
    if pipelining is not None:
        replace(stack, pipelining._PipelineStageBase, "__init__", _pipeline)


def _compile(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "torch.compile with inductor in a simulated world: its kernels need tensors with data. "
        "Compile with backend=\"aot_eager\" there, whose graphs run torch's operators, or "
        "simulate the model uncompiled"
    )


def _numpy(*_: Any, **__: Any) -> NoReturn:
    raise NoValueError(
        "numpy() in a simulated world: its tensors have shapes, dtypes and bytes, and hold "
        f"nothing; {_GUARD}"
    )


def _pipeline(_: Callable[..., Any]) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise UsageError(
            "a pipeline stage in a simulated world: stages tell each other the shapes of what "
            "they send by messages, which nobody receives there. Measure pipelines in a real "
            "world of as many ranks as there are stages: world_size(4)"
        )

    return refuse
