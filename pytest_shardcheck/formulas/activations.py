"""Bytes of saved activations of a transformer: Korthikanti et al. 2022, section 4 and table 2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_shardcheck.vocabulary.errors import UsageError

RECOMPUTATIONS: Final = ("none", "selective", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """What one GPU holds: `stored` from forward on, and `recomputed` on top at backward's peak."""

    stored: int = 0
    recomputed: int = 0

    @property
    def peak(self) -> int:
        """Return both."""
        return self.stored + self.recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A GPT as the paper has it, with its letters.

    `layers` L, `hidden` h (the MLP is 4h wide, with GELU), `heads` a, `sequence` s in tokens,
    `batch` b in sequences of one micro-batch, `tensor_parallel` t. Activations have 16 bits and
    dropout masks a byte; attention keeps its scores (no flash attention).

    Raises UsageError where one is no positive int, or where t does not divide a, h (and s, with
    `sequence_parallel`).
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int = 1
    tensor_parallel: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that no such model has."""
        for name in ("layers", "hidden", "heads", "sequence", "batch", "tensor_parallel"):
            given = getattr(self, name)
            if not isinstance(given, int) or isinstance(given, bool) or given < 1:
                raise UsageError(f"{name}={given!r}: expected an int from 1 on")
        cut = ("heads", "hidden", *(("sequence",) if self.sequence_parallel else ()))
        for name in cut:
            if getattr(self, name) % self.tensor_parallel:
                raise UsageError(
                    f"{name}={getattr(self, name)} can't be cut in tensor_parallel="
                    f"{self.tensor_parallel} equal parts"
                )


def transformer_activations(model: Transformer, recomputation: str = "none") -> ActivationBytes:
    """Return the bytes of one micro-batch on one GPU, without embedding and output layer.

    Each layer stores (table 2), with t-way tensor parallelism and sbh for s·b·h:

    - "none": sbh (10 + 24/t + 5as/(ht)), and with sequence parallelism sbh (34/t + 5as/(ht));
      without any, sbh (34 + 5as/h), that is 34sbh + 5as²b.
    - "selective", of the attention's core: the same without 5as²b/t.
    - "full": 2sbh, a layer's input, and 2sbh/t where sequence parallelism shards that, too (the
      paper's row has 2sbh for both).

    The paper counts what is stored. At backward's peak there is also what the last layer computes
    anew, `recomputed`; the attention's core does so when the backward of what comes after it in the
    layer, 24sbh/t (without sequence parallelism sbh (6 + 18/t)), has let go of that.

    Raises:
        UsageError: `recomputation` is none of these.
    """
    if recomputation not in RECOMPUTATIONS:
        known = ", ".join(RECOMPUTATIONS)
        raise UsageError(f"recomputation={recomputation!r}: expected one of {known}")
    t = model.tensor_parallel
    sbh = model.sequence * model.batch * model.hidden
    core = 5 * model.heads * model.sequence**2 * model.batch // t
    outside = 34 * sbh // t if model.sequence_parallel else 10 * sbh + 24 * sbh // t
    if recomputation == "selective":
        after = 24 * sbh // t if model.sequence_parallel else 6 * sbh + 18 * sbh // t
        return checkpointed(layers=model.layers, layer=outside + core, kept=outside, let_go=after)
    if recomputation == "full":
        kept = 2 * sbh // t if model.sequence_parallel else 2 * sbh
        return checkpointed(layers=model.layers, layer=outside + core, kept=kept)
    return ActivationBytes(stored=model.layers * (outside + core))


def checkpointed(*, layers: int, layer: int, kept: int, let_go: int = 0) -> ActivationBytes:
    """Return the bytes of `layers` equal layers that are checkpointed one by one.

    Args:
        layers: how many there are.
        layer: bytes that one saves without checkpointing, its input included.
        kept: bytes of these that stay until backward: with plain checkpointing, its input.
        let_go: bytes of `kept` that backward needs no more when it computes the rest anew.
    """
    return ActivationBytes(stored=layers * kept, recomputed=max(0, layer - kept - let_go))
