"""Test the memory and communication of distributed PyTorch training code in pytest.

Importing this package imports neither torch nor the plugin, and each name only when it is used: a
pytest session without world tests must not pay for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_shardcheck.expectations import max_memory, memory
    from pytest_shardcheck.vocabulary.errors import (
        DeadRankError,
        HarnessError,
        HungRankError,
        RankFailedError,
        ShardcheckError,
        UnmetExpectationError,
        UsageError,
    )
    from pytest_shardcheck.vocabulary.readings import MemoryReading, Reading, StateBytes
    from pytest_shardcheck.vocabulary.specs import WorldSpec

__version__ = "0.1.0.dev0"

__all__ = [
    "DeadRankError",
    "HarnessError",
    "HungRankError",
    "MemoryReading",
    "RankFailedError",
    "Reading",
    "ShardcheckError",
    "StateBytes",
    "UnmetExpectationError",
    "UsageError",
    "WorldSpec",
    "max_memory",
    "memory",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room = "expectations" if name.endswith("memory") else "vocabulary"
    return getattr(import_module(f"{__name__}.{room}"), name)
