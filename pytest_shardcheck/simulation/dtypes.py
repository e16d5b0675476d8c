"""Errors about tensors of different dtypes, which torch's rules for shapes let pass.

`mm` of float32 and bfloat16 is an error of every kernel, and none on fake tensors. So where one of
these operators gets several dtypes, its kernel is asked, once for each combination, with tensors of
one element: what it refuses then, and takes in one dtype, it refuses for its dtypes.

Limits: the operators below; most others promote, or check for themselves. A convolution's bias of
another dtype passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily

from pytest_shardcheck.instruments.tensors import tensors_in

from .asking import asking_line

# Which arguments are sizes: of tensors of one element they are 1.
_SIZES_AT: Final[dict[str, tuple[int, ...]]] = {
    "mm addmm addmm_ addbmm baddbmm bmm mv addmv dot vdot": (),
    "convolution": (8,),
    "native_layer_norm": (1,),
    "native_group_norm": (3, 4, 5, 6),
    "native_batch_norm _native_batch_norm_legit _batch_norm_with_update": (),
    "nll_loss_forward nll_loss2d_forward binary_cross_entropy": (),
    "index_put index_put_ index_add index_add_ index_copy index_copy_": (),
    "_prelu_kernel": (),
}
_ASKED: Final = {
    getattr(torch.ops.aten, name).default: sizes
    for names, sizes in _SIZES_AT.items()
    for name in names.split()
}
_Signature = tuple[Any, ...]


class Dtypes:
    """What kernels have said of the combinations of dtypes that they got."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._answers: dict[_Signature, str] = {}

    def check(self, func: Any, args: Sequence[Any]) -> None:
        """Raise what an operator's kernel raises for the dtypes of its arguments.

        Raises:
            RuntimeError: as in a real world, with the line that asks.
        """
        if func not in _ASKED:
            return
        tensors = list(tensors_in(args))
        if len({tensor.dtype for tensor in tensors}) < 2:
            return
        signature = (func, *((tensor.dtype, tensor.dim()) for tensor in tensors))
        refusal = self._answers.get(signature)
        if refusal is None:
            refusal = self._answers[signature] = _refusal(func, args, tensors)
        if refusal:
            raise RuntimeError(f"{refusal} ({func} at {asking_line()})")


def _refusal(func: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> str:
    """Return what the kernel says to these dtypes and not to equal ones, or nothing."""
    if any(one.layout != torch.strided or one.device.type != "cpu" for one in tensors):
        return ""
    dtype = next((one.dtype for one in tensors if one.is_floating_point()), None)
    others = [number for number, one in enumerate(tensors) if one.dtype is not dtype]
    with unset_fake_temporarily():
        refusal = _said(func, args, tensors, (), dtype)
        if not refusal or dtype is None:
            return ""
        # Some are indices, which have to stay integers.
        for count in range(1, len(others) + 1):
            for changed in combinations(others, count):
                if not _said(func, args, tensors, changed, dtype):
                    return refusal
    return ""


def _said(
    func: Any,
    args: Sequence[Any],
    tensors: Sequence[Tensor],
    changed: Sequence[int],
    dtype: torch.dtype | None,
) -> str:
    """Return the kernel's error on tensors of one element, or nothing where it takes them.

    The tensors whose numbers are in `changed` get another dtype.
    """
    singles = iter(
        [
            torch.zeros((1,) * one.dim(), dtype=dtype if number in changed else one.dtype)
            for number, one in enumerate(tensors)
        ]
    )
    sizes = _ASKED[func]
    single = [
        _ones(value) if number in sizes else _filled(value, singles)
        for number, value in enumerate(args)
    ]
    try:
        func(*single)
    except NotImplementedError:
        return ""  # what a CPU has no kernel for, another device may have
    except (RuntimeError, IndexError) as error:
        return str(error).partition("\n")[0]
    return ""


def _filled(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, Tensor):
        return next(tensors)
    if isinstance(value, (list, tuple)):
        return [_filled(one, tensors) for one in value]
    return value


def _ones(value: Any) -> Any:
    return [1] * len(value) if isinstance(value, (list, tuple)) else 1
