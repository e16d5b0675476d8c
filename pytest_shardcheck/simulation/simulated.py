"""One rank of a simulated world, from before its setup until it ends."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from . import addresses, conversions, groups, refusals, sharding
from .exchange import Exchange
from .mode import SimulatedMode
from .training import Tell, Training


@contextmanager
def simulation(
    directory: Path, rank: int, running: Sequence[int], tell: Tell = lambda *_: None
) -> Generator[None]:
    """Run a block on tensors without data, in groups without peers.

    Args:
        directory: the world's, where simulated ranks leave what they tell each other.
        rank: this one's number in the world.
        running: those of all simulated ranks.
        tell: gets the number of optimizer steps that ended, and the phase, where that changes.
    """
    with ExitStack() as stack:
        groups.install(stack, Exchange.over(directory, rank, running))
        for part in (addresses, conversions, sharding, refusals):
            part.install(stack)
        training = Training(tell)
        training.install(stack)
        stack.enter_context(SimulatedMode(training))
        yield
