"""Test the memory and communication of distributed PyTorch training code in pytest.

Importing this package imports neither torch nor the plugin.
"""

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
