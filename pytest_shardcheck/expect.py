"""Closed forms as expectations: usable wherever a marker takes a value.

@pytest.mark.world_size(2, 4)
@pytest.mark.memory(state=expect.zero(stage=3, params=526_336), tolerance="1%")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_shardcheck.formulas import (
    OPTIMIZERS,
    BytesPerParameter,
    ZeroBytes,
    element_size,
    zero_bytes,
)
from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_shardcheck.vocabulary.specs import WorldSpec

__all__ = ["Zero", "zero"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """The state that one rank holds under ZeRO, in bytes, worked out for a test's world.

    Called with a world it is the sum; `params`, `grads` and `optimizer` are callables of the world
    for the arguments of these names.
    """

    stage: int
    count: int
    each: BytesPerParameter
    tensors: int
    axis: str | None

    def __call__(self, world: WorldSpec) -> int:
        """Return params, grads and optimizer together."""
        return self.bytes_in(world).state

    @property
    def params(self) -> Callable[[WorldSpec], int]:
        """Return what works out the parameters' bytes."""
        return lambda world: self.bytes_in(world).params

    @property
    def grads(self) -> Callable[[WorldSpec], int]:
        """Return what works out the gradients' bytes."""
        return lambda world: self.bytes_in(world).grads

    @property
    def optimizer(self) -> Callable[[WorldSpec], int]:
        """Return what works out the bytes of the optimizer's state."""
        return lambda world: self.bytes_in(world).optimizer

    def bytes_in(self, world: WorldSpec) -> ZeroBytes:
        """Return the bytes of one rank of `world`.

        Raises:
            UsageError: the world's mesh has no such axis.
        """
        return zero_bytes(
            stage=self.stage,
            params=self.count,
            shards=self._shards(world),
            each=self.each,
            tensors=self.tensors,
        )

    def _shards(self, world: WorldSpec) -> int:
        if self.axis is None:
            return world.size
        if self.axis not in world.mesh:
            raise UsageError(
                f"expect.zero(axis={self.axis!r}): the mesh has the axes {', '.join(world.mesh)}"
            )
        return world.mesh[self.axis]


def zero(  # noqa: PLR0913  # the words of the paper, all but two with a default
    *,
    stage: int,
    params: int,
    param_dtype: object = "float32",
    grad_dtype: object | None = None,
    optimizer: str = "adamw",
    moment_dtype: object | None = None,
    master_weights: bool = False,
    tensors: int = 0,
    axis: str | None = None,
) -> Zero:
    """Expect the model state of ZeRO (Rajbhandari et al. 2020, section 3), in bytes per rank.

    Args:
        stage: 0 for plain data parallelism, 1, 2 or 3.
        params: how many parameters the model has, over all ranks.
        param_dtype: a torch dtype, its name, or the bytes of one element.
        grad_dtype: likewise; by default that of the parameters.
        optimizer: one of adam, adamw, adagrad, rmsprop, sgd, sgd_momentum.
        moment_dtype: by default float32 with master weights, else that of the parameters.
        master_weights: whether the optimizer keeps a float32 copy of the parameters.
        tensors: how many parameter tensors have a step counter of 4 bytes, as torch's Adam has.
        axis: the mesh axis over which state is sharded; by default the whole world.

    Raises:
        UsageError: an argument is not what is written here.
    """
    if stage not in (0, 1, 2, 3):
        raise UsageError(f"expect.zero(stage={stage!r}): expected 0, 1, 2 or 3")
    if optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise UsageError(f"expect.zero(optimizer={optimizer!r}): expected one of {known}")
    for name, count in (("params", params), ("tensors", tensors)):
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise UsageError(f"expect.zero({name}={count!r}): expected an int from 0 on")
    default = "float32" if master_weights else param_dtype
    moment = element_size(default if moment_dtype is None else moment_dtype)
    return Zero(
        stage=stage,
        count=params,
        each=BytesPerParameter(
            param=element_size(param_dtype),
            grad=element_size(param_dtype if grad_dtype is None else grad_dtype),
            optimizer=OPTIMIZERS[optimizer] * moment + (4 if master_weights else 0),
        ),
        tensors=tensors,
        axis=axis,
    )
