"""Say what watched tensors are to a peak: parameters, unsharded ones, gradients, state, buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from .holdings import Holdings

Claim = tuple[str, "Iterable[Tensor]"]


def claims_of(held: Holdings) -> Iterator[Claim]:
    """Yield a category of `LIVE_CATEGORIES` and its tensors; the first to name a storage has it.

    Unsharded parameters come before parameters: while FSDP has a module unsharded, `parameters()`
    shows them. What an optimizer holds beyond watched modules (fp32 master copies) is its state.
    """
    yield "unsharded parameters", held.unsharded
    yield "parameters", held.params
    yield "gradients", held.grads
    yield "optimizer state", held.optimizer_state
    if held.has_tensors:
        yield "optimizer state", held.group_params
    yield "buffers", held.buffers
