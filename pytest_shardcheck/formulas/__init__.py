"""Closed forms. No torch here."""

from pytest_shardcheck.formulas.zero import (
    OPTIMIZERS,
    BytesPerParameter,
    ZeroBytes,
    element_size,
    zero_bytes,
)

__all__ = ["OPTIMIZERS", "BytesPerParameter", "ZeroBytes", "element_size", "zero_bytes"]
