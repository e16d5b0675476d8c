"""Closed forms. No torch here."""

from pytest_shardcheck.formulas.accounting import (
    NO_OPTIMIZER,
    Accounting,
    Component,
    accounting,
)
from pytest_shardcheck.formulas.activations import (
    RECOMPUTATIONS,
    ActivationBytes,
    Transformer,
    checkpointed,
    transformer_activations,
)
from pytest_shardcheck.formulas.zero import (
    DIVIDED_FROM,
    OPTIMIZERS,
    BytesPerParameter,
    ZeroBytes,
    element_size,
    held_elements,
    zero_bytes,
)

__all__ = [
    "DIVIDED_FROM",
    "NO_OPTIMIZER",
    "OPTIMIZERS",
    "RECOMPUTATIONS",
    "Accounting",
    "ActivationBytes",
    "BytesPerParameter",
    "Component",
    "Transformer",
    "ZeroBytes",
    "accounting",
    "checkpointed",
    "element_size",
    "held_elements",
    "transformer_activations",
    "zero_bytes",
]
