"""Cut a parameter into its rank's part alone: torch makes a view for every rank of the world.

On 1,024 ranks that is 1,024 operators for each parameter, of which two results are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, overload

from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_param

from .patches import replace


def install(stack: ExitStack) -> None:
    """Have FSDP2 make the parts that it uses."""
    replace(stack, _fsdp_param, "_chunk_with_empty", lambda _: Parts)


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
