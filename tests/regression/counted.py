"""Live memory of one region, taken by the instrument alone."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pytest_shardcheck.instruments.claims import claims_of
from pytest_shardcheck.instruments.holdings import Holdings
from pytest_shardcheck.instruments.live_memory import LiveMemory
from pytest_shardcheck.instruments.surroundings import Surroundings
from pytest_shardcheck.instruments.watched import opened

if TYPE_CHECKING:
    from collections.abc import Iterator


class Counted:
    """The instrument from a test's setup on."""

    def __init__(self) -> None:
        self.surroundings = Surroundings()
        self.memory = LiveMemory("cpu", self.surroundings)

    def start(self) -> None:
        gc.freeze()  # as in a rank: regions collect garbage
        self.surroundings.start()
        self.memory.start()

    def stop(self) -> None:
        self.memory.stop()
        self.surroundings.stop()
        gc.unfreeze()

    @contextmanager
    def region(self, *watched: object, ceilings: Any = None) -> Iterator[SimpleNamespace]:
        """Count a block; the result has `cpu` and `phases` when it has ended."""
        found = opened(watched)
        self.surroundings.learn(found.modules)
        result = SimpleNamespace()
        window = self.memory.open(ceilings or {})
        yield result
        live = self.memory.close(window, lambda: claims_of(Holdings(opened(watched))))
        result.cpu = live.by_device["cpu"]
        result.by_device = live.by_device
        result.phases = {phase: figures["cpu"] for phase, figures in live.phases.items()}
