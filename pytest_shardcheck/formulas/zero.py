"""Bytes of model state per rank under ZeRO: Rajbhandari et al. 2020, section 3 and figure 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_shardcheck.vocabulary.errors import UsageError

# Tensors of a parameter's size that the optimizer keeps for it.
OPTIMIZERS: Final = {
    "adam": 2,
    "adamw": 2,
    "adagrad": 1,
    "rmsprop": 1,
    "sgd": 0,
    "sgd_momentum": 1,
}
# The stage from which on each kind of state is divided by the ranks (section 3.2, figure 1).
DIVIDED_FROM: Final = {"optimizer": 1, "grads": 2, "params": 3}
_SIZES: Final = {
    "float64": 8,
    "double": 8,
    "float32": 4,
    "float": 4,
    "fp32": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "half": 2,
    "fp16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroBytes:
    """Hold the bytes of one rank; `state` is their sum."""

    params: int
    grads: int
    optimizer: int

    @property
    def state(self) -> int:
        """Return all three."""
        return self.params + self.grads + self.optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesPerParameter:
    """Hold the bytes that one parameter costs, itself, its gradient and its optimizer state."""

    param: int
    grad: int
    optimizer: int


def zero_bytes(
    *, stage: int, params: int, shards: int, each: BytesPerParameter, tensors: int = 0
) -> ZeroBytes:
    """Return the bytes of one rank.

    With Ψ parameters and N shards (section 3.2): stage 0 holds everything, stage 1 divides the
    optimizer's share by N, stage 2 the gradients' too, stage 3 the parameters' too. A shard is
    ceil(Ψ / N) elements, as in one flat unit that is padded.

    Args:
        stage: 0 (plain data parallelism) to 3.
        params: Ψ, in elements.
        shards: N.
        each: bytes per parameter (16 for Adam: section 3.1).
        tensors: parameter tensors whose optimizer state has a step counter (4 bytes each).
    """
    held = {
        kind: held_elements(kind=kind, stage=stage, params=params, shards=shards)
        for kind in DIVIDED_FROM
    }
    return ZeroBytes(
        params=each.param * held["params"],
        grads=each.grad * held["grads"],
        optimizer=each.optimizer * held["optimizer"] + 4 * tensors,
    )


def held_elements(*, kind: str, stage: int, params: int, shards: int) -> int:
    """Return for how many of Ψ parameters one rank holds what is of `kind` (see `DIVIDED_FROM`).

    All of them, or from its stage on a shard: ceil(Ψ / N) elements, the last one padded.
    """
    return -(-params // shards) if stage >= DIVIDED_FROM[kind] else params


def element_size(dtype: object) -> int:
    """Return the bytes of one element: of a dtype, its name ("bf16"), or a size itself.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(dtype, str) and dtype.isdecimal():  # as a command line says it
        dtype = int(dtype)
    if isinstance(dtype, int) and not isinstance(dtype, bool) and dtype > 0:
        return dtype
    size = _SIZES.get(str(dtype).removeprefix("torch."))
    if size is None:
        raise UsageError(
            f"{dtype!r} is no dtype whose size is known; expected a torch dtype, one of "
            f"{', '.join(_SIZES)}, or the bytes of one element"
        )
    return size
