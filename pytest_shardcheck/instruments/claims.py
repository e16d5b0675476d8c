"""Say what watched tensors are to a peak: parameters, unsharded ones, gradients, state, buffers."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from ._torch_private import unsharded_params
from .state import buffers_in, grads_in, group_params, optimizer_state, params_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from .watched import Opened

Claim = tuple[str, "Iterable[Tensor]"]


def claims_of(opened: Opened) -> Iterator[Claim]:
    """Yield a category of `LIVE_CATEGORIES` and its tensors; the first to name a storage has it.

    Unsharded parameters come before parameters: while FSDP has a module unsharded, `parameters()`
    shows them. What an optimizer holds beyond watched modules (fp32 master copies) is its state.
    """
    modules = list(chain.from_iterable(module.modules() for module in opened.modules))
    yield "unsharded parameters", chain.from_iterable(map(unsharded_params, modules))
    yield "parameters", params_in(opened)
    yield "gradients", grads_in(opened)
    state = map(optimizer_state, opened.optimizers)
    yield "optimizer state", chain.from_iterable(state)
    if opened.has_tensors:
        groups = map(group_params, opened.optimizers)
        yield "optimizer state", chain.from_iterable(groups)
    yield "buffers", buffers_in(opened)
