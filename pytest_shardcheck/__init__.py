"""Test the memory and communication of distributed PyTorch training code in pytest.

Importing this package imports neither torch nor the plugin, and each name only when it is used: a
pytest session without world tests must not pay for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_shardcheck import expect, plan
    from pytest_shardcheck.expectations import (
        collectives,
        max_collectives,
        max_memory,
        max_saved_activations,
        memory,
        saved_activations,
    )
    from pytest_shardcheck.vocabulary.collectives import Call, Volume
    from pytest_shardcheck.vocabulary.errors import (
        DeadRankError,
        HarnessError,
        HungRankError,
        NoValueError,
        RankFailedError,
        ShardcheckError,
        UnmetExpectationError,
        UsageError,
    )
    from pytest_shardcheck.vocabulary.frameworks import Held
    from pytest_shardcheck.vocabulary.readings import (
        CollectivesReading,
        Crossing,
        LiveBytes,
        MemoryReading,
        PhaseReading,
        Reading,
        SavedBytes,
        SavedReading,
        StateBytes,
        TensorRecord,
    )
    from pytest_shardcheck.vocabulary.specs import WorldSpec

__version__ = "0.1.0.dev0"

__all__ = [
    "Call",
    "CollectivesReading",
    "Crossing",
    "DeadRankError",
    "HarnessError",
    "Held",
    "HungRankError",
    "LiveBytes",
    "MemoryReading",
    "NoValueError",
    "PhaseReading",
    "RankFailedError",
    "Reading",
    "SavedBytes",
    "SavedReading",
    "ShardcheckError",
    "StateBytes",
    "TensorRecord",
    "UnmetExpectationError",
    "UsageError",
    "Volume",
    "WorldSpec",
    "collectives",
    "expect",
    "max_collectives",
    "max_memory",
    "max_saved_activations",
    "memory",
    "plan",
    "saved_activations",
]

_FUNCTIONS = ("collectives", "memory", "saved_activations")
_MODULES = ("expect", "plan")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    room = "expectations" if name.removeprefix("max_") in _FUNCTIONS else "vocabulary"
    return getattr(import_module(f"{__name__}.{room}"), name)
