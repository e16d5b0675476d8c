"""One rank of a simulated world, from before its setup until it ends."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from . import conversions, groups, refusals, sharding
from .mode import SimulatedMode


@contextmanager
def simulation() -> Generator[None]:
    """Run a block on tensors without data, in groups without peers."""
    with ExitStack() as stack:
        for part in (groups, conversions, sharding, refusals):
            part.install(stack)
        stack.enter_context(SimulatedMode())
        yield
