"""What watched things hold at one moment. Each list is made once, however many ask for it."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

from torch import Tensor, nn

from ._torch_private import hidden_grads, hidden_params, unsharded_params
from .tensors import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .watched import Opened


class Holdings:
    """Parameters, gradients, buffers and optimizer state, as they are found when first asked for.

    Hold on to it no longer than nothing runs: it keeps alive what it found.
    """

    def __init__(self, opened: Opened) -> None:
        """Look into these."""
        self.roots = opened.modules
        self.optimizers = opened.optimizers
        self.has_tensors = opened.has_tensors
        self.has_optimizer_state = opened.has_optimizer_state
        self.things = opened.things
        self.taught = opened.taught
        self._tensors = opened.tensors

    @cached_property
    def params(self) -> list[Tensor]:
        """Parameters, those that only FSDP knows included."""
        own = chain.from_iterable(root.parameters() for root in self.roots)
        hidden = chain.from_iterable(map(hidden_params, self._modules))
        taught = self._taught("parameters", "unsharded parameters")
        return [*taught, *own, *hidden, *filter(_is_param, self._tensors)]

    @cached_property
    def unsharded(self) -> list[Tensor]:
        """What FSDP gathered parameters into, freed or not."""
        return list(chain.from_iterable(map(unsharded_params, self._modules)))

    @cached_property
    def grads(self) -> list[Tensor]:
        """Gradients of the parameters, and those that are in no `.grad`."""
        hidden = chain.from_iterable(map(hidden_grads, self._modules))
        return [*self._taught("gradients"), *grads_of(self.params), *hidden]

    @cached_property
    def buffers(self) -> list[Tensor]:
        """Buffers, and bare tensors that are no parameters."""
        own = chain.from_iterable(root.buffers() for root in self.roots)
        bare = (tensor for tensor in self._tensors if not _is_param(tensor))
        return [*self._taught("buffers"), *own, *bare]

    @cached_property
    def group_params(self) -> list[Tensor]:
        """The parameters that optimizers hold."""
        return list(chain.from_iterable(map(_group_params, self.optimizers)))

    @cached_property
    def optimizer_state(self) -> list[Tensor]:
        """State tensors of the optimizers."""
        own = chain.from_iterable(map(_optimizer_state, self.optimizers))
        return [*self._taught("optimizer state"), *own]

    def _taught(self, *categories: str) -> list[Tensor]:
        return [its.tensor for its in self.taught if its.category in categories]

    @cached_property
    def _modules(self) -> list[nn.Module]:
        return list(chain.from_iterable(root.modules() for root in self.roots))


def grads_of(params: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the gradients in `.grad`; reading that of a tensor that is no leaf warns."""
    for param in params:
        if param.is_leaf and param.grad is not None:
            yield param.grad


def _is_param(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


def _group_params(optimizer: object) -> Iterator[Tensor]:
    yield from tensors_in([group["params"] for group in _groups(optimizer) if "params" in group])


def _groups(optimizer: object) -> list[dict[str, object]]:
    # Functional optimizers have one group, under the name in the singular.
    one = getattr(optimizer, "param_group", None)
    return list(getattr(optimizer, "param_groups", [] if one is None else [one]))


def _optimizer_state(optimizer: object) -> Iterator[Tensor]:
    """Yield state tensors: those in `.state`, a learning rate or other hyperparameter given as a
    tensor, and what `ZeroRedundancyOptimizer.consolidate_state_dict` keeps for one rank."""
    yield from tensors_in(getattr(optimizer, "state", None))
    for group in _groups(optimizer):
        yield from tensors_in([value for name, value in group.items() if name != "params"])
    yield from tensors_in(getattr(optimizer, "_all_state_dicts", None))
