"""The hooks by which a framework, or a conftest, teaches us where its state lives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_shardcheck.vocabulary.frameworks import Held


def pytest_shardcheck_held(thing: object) -> Iterable[Held] | None:
    """Return the tensors that a framework keeps in ``thing`` where torch does not show them.

    Called in a rank, when a region begins and ends and when an optimizer's step begins, for each
    watched thing and for what is found in it: modules (the outermost ones, not their submodules),
    optimizers, engines. It must not run torch operations: they would be measured.

    Args:
        thing: Any object; answer None where it is not yours.

    Returns:
        A ``pytest_shardcheck.Held`` for each tensor. Parameters, gradients and buffers of modules
        and the ``.state`` of optimizers need not be named; what is named has this category.
    """


def pytest_shardcheck_phases(thing: object) -> Mapping[str, str] | None:
    """Return the methods of ``thing`` that are a phase, such as ``{"step": "optimizer"}``.

    Autograd's runs are backward and ``torch.optim.Optimizer.step`` is optimizer without it. It is
    for what an engine does around them: reducing gradients after backward, gathering parameters
    after a step.

    Args:
        thing: Any object; answer None where it is not yours.

    Returns:
        The name of a method to "forward", "backward" or "optimizer".
    """
