"""DistributedDataParallel."""

from __future__ import annotations

from contextlib import ExitStack


def install(stack: ExitStack) -> None:
    """Nothing yet."""
