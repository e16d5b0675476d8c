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
    shard = -(-params // shards)
    return ZeroBytes(
        params=each.param * (shard if stage >= 3 else params),
        grads=each.grad * (shard if stage >= 2 else params),
        optimizer=each.optimizer * (shard if stage >= 1 else params) + 4 * tensors,
    )


def element_size(dtype: object) -> int:
    """Return the bytes of one element: of a dtype, its name ("bf16"), or a size itself.

    Raises:
        UsageError: it is none of these.
    """
    if isinstance(dtype, int) and not isinstance(dtype, bool) and dtype > 0:
        return dtype
    size = _SIZES.get(str(dtype).removeprefix("torch."))
    if size is None:
        raise UsageError(
            f"{dtype!r} is no dtype whose size is known; expected a torch dtype, one of "
            f"{', '.join(_SIZES)}, or the bytes of one element"
        )
    return size
