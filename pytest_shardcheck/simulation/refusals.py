"""What a simulated world can't do, said where it is asked for."""

from __future__ import annotations

from contextlib import ExitStack


def install(stack: ExitStack) -> None:
    """Nothing yet."""
