"""Say what watched tensors are to a peak: parameters, unsharded ones, gradients, state, buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from .holdings import Holdings


class Claim(NamedTuple):
    """Say of tensors what they are, and what the framework calls them that taught us so."""

    category: str
    tensors: Iterable[Tensor]
    name: str = ""
    taught: bool = False


def claims_of(held: Holdings) -> Iterator[Claim]:
    """Yield what tensors are; the first to name a storage has it. A framework knows its own best.

    Unsharded parameters come before parameters: while FSDP has a module unsharded, `parameters()`
    shows them. What an optimizer holds beyond watched modules (fp32 master copies) is its state.
    """
    yield from frameworks_claims_of(held)
    yield Claim("unsharded parameters", held.unsharded)
    yield Claim("parameters", held.params)
    yield Claim("gradients", held.grads)
    yield Claim("optimizer state", held.optimizer_state)
    if held.has_tensors:
        yield Claim("optimizer state", held.group_params)
    yield Claim("buffers", held.buffers)


def frameworks_claims_of(held: Holdings) -> Iterator[Claim]:
    """Yield what frameworks say of the tensors that they hold."""
    for its in held.taught:
        yield Claim(its.category, (its.tensor,), its.name, taught=True)
