"""Cut a tensor into its rank's part alone: torch makes a view for every rank of the world.

On 1,024 ranks FSDP2 makes 1,024 operators for each parameter, and looks at two results. FSDP1 makes
1,024 views of each flat parameter when it is built, gathered and reduced.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, overload

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import _flat_param, _runtime_utils
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.overrides import TorchFunctionMode

from .patches import replace


def install(stack: ExitStack) -> None:
    """Have FSDP make the parts that it uses."""
    replace(stack, _fsdp_param, "_chunk_with_empty", lambda _: Parts)
    replace(stack, _fsdp_param.FSDPParam, "reset_sharded_param", _keeping_padding)
    handle = _flat_param.FlatParamHandle
    replace(stack, handle, "_get_unpadded_shard", lambda of: staticmethod(_cutting(of, _Cuts)))
    replace(stack, handle, "_all_gather_flat_param", lambda of: _cutting(of, _EqualCuts))
    replace(
        stack, _runtime_utils, "_get_reduce_scatter_tensors", lambda of: _cutting(of, _FirstCut)
    )


def _keeping_padding(reset: Callable[[Any], None]) -> Callable[[Any], None]:
    """Have FSDP2 see that a padded shard is padded, by which it looks for a plain tensor's type.

    It would pad that again, into a new storage, when forward is first called.
    """

    @functools.wraps(reset)
    def reset_sharded_param(param: Any) -> None:
        held = param._sharded_param_data
        new = getattr(param._module_info.module, param._module_info.param_name)
        same = type(held) is FakeTensor and _share_storage(held, new._local_tensor)
        if not same or param.pin_memory:
            reset(param)
            return
        param.sharded_param = new
        param._sharding_spec = new._spec

    return reset_sharded_param


def _share_storage(one: Tensor, other: Tensor) -> bool:
    address = one.untyped_storage().data_ptr()  # see `addresses`: 0 where it is empty
    return address != 0 and address == other.untyped_storage().data_ptr()


def _cutting(function: Callable[..., Any], cuts: type[_Cuts]) -> Callable[..., Any]:
    """Return a function of FSDP1 whose calls of `chunk` return what it looks at."""

    @functools.wraps(function)
    def cut(*args: Any, **kwargs: Any) -> Any:
        with cuts():
            return function(*args, **kwargs)

    return cut


class _Cuts(TorchFunctionMode):
    """Cuts a tensor of one dimension on demand."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Answer `torch.chunk` and `tensor.chunk`; run anything else."""
        if func in (torch.chunk, Tensor.chunk):
            return self.cut(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def cut(self, tensor: Tensor, chunks: int) -> Sequence[Tensor]:
        """Return as many parts as torch does, which is fewer than ranks where some get none."""
        step = max(1, -(-len(tensor) // chunks))
        return Parts(tensor, max(1, -(-len(tensor) // step)), 0)


class _EqualCuts(_Cuts):
    """Cuts a padded tensor, all parts of which are alike, into the first, as often as needed."""

    def cut(self, tensor: Tensor, chunks: int) -> Sequence[Tensor]:
        """Return a list, which C++ takes."""
        return [tensor.narrow(0, 0, len(tensor) // chunks)] * chunks


class _FirstCut(_Cuts):
    """Cuts off the first part, where only that is looked at."""

    def cut(self, tensor: Tensor, chunks: int) -> Sequence[Tensor]:
        """Return the part with the most elements."""
        return super().cut(tensor, chunks)[:1]


class Parts(Sequence[Tensor]):
    """What `torch.chunk` and empty tensors for the ranks that it leaves out are, made on demand."""

    def __init__(self, tensor: Tensor, num_chunks: int, dim: int) -> None:
        """Cut nothing yet."""
        self._tensor = tensor
        self._dim = dim
        self._count = num_chunks
        length = tensor.size(dim)
        self._length = length
        self._step = max(1, -(-length // num_chunks))

    def __len__(self) -> int:
        """Return the number of ranks."""
        return self._count

    def __iter__(self) -> Iterator[Tensor]:
        """Make every part."""
        return (self[index] for index in range(self._count))

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: Any) -> Any:
        """Make one part, or several."""
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        start = min(index % self._count * self._step, self._length)
        if start == self._length > 0:
            return self._tensor.new_empty(0)
        return self._tensor.narrow(self._dim, start, min(self._step, self._length - start))
