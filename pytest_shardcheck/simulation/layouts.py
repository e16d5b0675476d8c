"""What kernels return where torch's rules for fake tensors say something else: strides, bytes.

Other strides make other copies later on: a Linear after a BatchNorm of transposed activations gets
them in order, and copies nothing. Each rule here is held against the kernels themselves, in
tests/simulation/test_layouts.py.

Limits: operators that training uses, in the layouts that training makes. What is not here is as
torch's rules say; they are wrong for rare ones more (`2 ** x`, `logsigmoid`, FFTs of several
dimensions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

Rule = Callable[[Sequence[Any], Any], Any]
_NO_REDUCTION: Final = 0


def as_kernels_do(func: Any, args: Sequence[Any], result: Any) -> Any:
    """Return what an operator's kernel would, given what the rule for shapes returned."""
    rule = _RULES.get(func)
    return result if rule is None else rule(args, result)


def _formatted(of: int | None, *which: int) -> Rule:
    """Lay results out as a kernel does that makes them anew, in the order of its argument `of`.

    That is channels last where the argument is, and contiguous otherwise, also where that is
    transposed; always contiguous where it is None. `which` results, by their number.
    """

    def rule(args: Sequence[Any], result: Any) -> Any:
        wanted = torch.contiguous_format if of is None else suggest_memory_format(args[of])
        if isinstance(result, Tensor):
            return _in_format(result, wanted)
        return tuple(
            _in_format(one, wanted) if number in which else one for number, one in enumerate(result)
        )

    return rule


def _in_format(tensor: Any, wanted: torch.memory_format) -> Any:
    if tensor is None or tensor.is_contiguous(memory_format=wanted):
        return tensor
    return torch.empty_like(tensor, memory_format=wanted)


def _reduced_in_place(args: Sequence[Any], result: Tensor) -> Tensor:
    """Keep the storage of all losses: the kernel shrinks their tensor to a number, not their bytes.

    The arguments are `(input, target, ..., reduction, ...)`.
    """
    if result.dim() or _reduction_among(args) == _NO_REDUCTION:
        return result
    functional: Any = torch  # its stubs leave a type out
    shape = functional.broadcast_shapes(args[0].shape, args[1].shape)
    return result.new_empty(shape).resize_(())


def _cross_entropy(args: Sequence[Any], result: Tensor) -> Tensor:
    if _reduction_among(args) == _NO_REDUCTION:
        return torch.empty_like(args[0])
    return _reduced_in_place(args, result)


def _reduction_among(args: Sequence[Any]) -> int:
    return next((int(one) for one in args[2:] if type(one) is int), 1)


def _overloads(rules: Mapping[str, Rule]) -> Iterator[tuple[Any, Rule]]:
    for names, rule in rules.items():
        for name in names.split():
            packet, _, overload = name.partition(".")
            yield getattr(getattr(torch.ops.aten, packet), overload or "default"), rule


_RULES: Final[dict[Any, Rule]] = dict(
    _overloads(
        {
            "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats "
            "_batch_norm_with_update": _formatted(0, 0),
            "native_batch_norm_backward batch_norm_backward": _formatted(1, 0),
            "native_layer_norm_backward": _formatted(None, 0, 1, 2),
            "_log_softmax_backward_data": _formatted(None),
            "mse_loss_backward smooth_l1_loss_backward huber_loss_backward": _formatted(None),
            "replication_pad2d_backward": _formatted(1),
            "max_unpool2d channel_shuffle": _formatted(0),
            "mse_loss smooth_l1_loss soft_margin_loss": _reduced_in_place,
            "binary_cross_entropy": _cross_entropy,
        }
    )
)
