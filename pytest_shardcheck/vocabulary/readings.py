"""What one rank measured in one region: frozen, plain data. All sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_shardcheck.vocabulary import plain
from pytest_shardcheck.vocabulary.collectives import CollectivesReading
from pytest_shardcheck.vocabulary.memory import (
    CATEGORIES,
    Crossing,
    LiveBytes,
    MemoryReading,
    StateBytes,
    TensorRecord,
)
from pytest_shardcheck.vocabulary.saved import SavedBytes, SavedReading

__all__ = [
    "CATEGORIES",
    "PHASES",
    "SCHEMA_VERSION",
    "CollectivesReading",
    "Crossing",
    "LiveBytes",
    "MemoryReading",
    "PhaseReading",
    "Reading",
    "SavedBytes",
    "SavedReading",
    "StateBytes",
    "TensorRecord",
]

SCHEMA_VERSION = 1
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseReading:
    """Hold what one rank measured in one phase of a region."""

    memory: MemoryReading
    collectives: CollectivesReading
    saved: SavedBytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Hold what one rank measured in one region.

    `occurrence` counts the regions of one name from 0. `outermost` is whether the region stood in
    no other. `implicit` is the test body, taken as the region because the test opened none.
    `live_phases` are the storages alive, phase to device to bytes; a phase that never ran is
    absent. `saved` is None where no hooks were installed.
    """

    rank: int
    region: str
    occurrence: int = 0
    outermost: bool = True
    implicit: bool = False
    memory: MemoryReading
    collectives: CollectivesReading = field(default_factory=CollectivesReading)
    saved: SavedReading | None = None
    live_phases: Mapping[str, Mapping[str, LiveBytes]] = field(default_factory=dict)

    @property
    def phases(self) -> dict[str, PhaseReading]:
        """Return what each phase that ran measured, with the attributes of a reading."""
        return {name: self._phase(name) for name in PHASES if self._has(name)}

    def _has(self, phase: str) -> bool:
        called = any(call.phase == phase for call in self.collectives.calls)
        return called or phase in self.live_phases or phase in self._saved_phases

    @property
    def _saved_phases(self) -> Mapping[str, SavedBytes]:
        return self.saved.phases if self.saved is not None else {}

    def _phase(self, name: str) -> PhaseReading:
        return PhaseReading(
            memory=MemoryReading(
                device=self.memory.device,
                live_by_device=self.live_phases.get(name, {}),
                live_unmeasured=self.memory.live_unmeasured,
            ),
            collectives=self.collectives.phase(name),
            saved=self._saved_phases.get(name, SavedBytes()) if self.saved is not None else None,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the reading as what `json` can write, with the version of its schema."""
        return plain.to_versioned(self, SCHEMA_VERSION)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reading:
        """Build the reading that `to_json` wrote. Raises UsageError on another schema."""
        return plain.from_versioned(cls, data, SCHEMA_VERSION, "reading")
