"""What one rank measured in one region: frozen, plain data. All sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA_VERSION = 1
CATEGORIES = ("params", "grads", "optimizer", "buffers")


def _total(figures: Iterable[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Hold the state at rest by category; None is what was not watched."""

    params: int | None = None
    grads: int | None = None
    optimizer: int | None = None
    buffers: int | None = None

    @property
    def state(self) -> int | None:
        """Sum the watched categories; None where none was watched."""
        return _total(getattr(self, category) for category in CATEGORIES)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as what `json` can write."""
        return {category: getattr(self, category) for category in CATEGORIES}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StateBytes:
        """Build the figures that `to_json` wrote."""
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading:
    """Hold one rank's state at rest, per device and per named part.

    `device` is the rank's own ("cpu", "cuda:0"), and the attributes speak of it. `parts` are the
    subtotals of what was watched under a name, over all devices.
    """

    device: str = "cpu"
    by_device: Mapping[str, StateBytes] = field(default_factory=dict)
    parts: Mapping[str, StateBytes] = field(default_factory=dict)

    def on(self, device: str) -> StateBytes:
        """Return the state on `device`; "cuda" without an index is every CUDA device together.

        What was watched and lies elsewhere is 0 here; what was not watched is None.
        """
        return StateBytes(**{name: self._held(name, device) for name in CATEGORIES})

    def _held(self, category: str, device: str) -> int | None:
        held = {name: getattr(state, category) for name, state in self.by_device.items()}
        if all(figure is None for figure in held.values()):
            return None
        return sum(
            figure or 0 for name, figure in held.items() if device in (name, name.split(":")[0])
        )

    @property
    def params(self) -> int | None:
        """Return the bytes of parameters on the rank's device."""
        return self._held("params", self.device)

    @property
    def grads(self) -> int | None:
        """Return the bytes of gradients on the rank's device."""
        return self._held("grads", self.device)

    @property
    def optimizer(self) -> int | None:
        """Return the bytes of optimizer state on the rank's device."""
        return self._held("optimizer", self.device)

    @property
    def buffers(self) -> int | None:
        """Return the bytes of buffers on the rank's device."""
        return self._held("buffers", self.device)

    @property
    def state(self) -> int | None:
        """Sum the watched categories on the rank's device; None where none was watched."""
        return self.on(self.device).state

    def to_json(self) -> dict[str, Any]:
        """Return the reading as what `json` can write."""
        return {
            "device": self.device,
            "by_device": {name: state.to_json() for name, state in self.by_device.items()},
            "parts": {name: state.to_json() for name, state in self.parts.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryReading:
        """Build the reading that `to_json` wrote."""
        return cls(
            device=data["device"],
            by_device=_states(data["by_device"]),
            parts=_states(data["parts"]),
        )


def _states(data: Mapping[str, Mapping[str, Any]]) -> dict[str, StateBytes]:
    return {name: StateBytes.from_json(state) for name, state in data.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Hold what one rank measured in one region.

    `occurrence` counts the regions of one name from 0. `outermost` is whether the region stood in
    no other. `implicit` is the test body, taken as the region because the test opened none.
    """

    rank: int
    region: str
    occurrence: int = 0
    outermost: bool = True
    implicit: bool = False
    memory: MemoryReading

    def to_json(self) -> dict[str, Any]:
        """Return the reading as what `json` can write, with the version of its schema."""
        return {
            "schema": SCHEMA_VERSION,
            "rank": self.rank,
            "region": self.region,
            "occurrence": self.occurrence,
            "outermost": self.outermost,
            "implicit": self.implicit,
            "memory": self.memory.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reading:
        """Build the reading that `to_json` wrote. Raises UsageError on another schema."""
        if data.get("schema") != SCHEMA_VERSION:
            raise UsageError(
                f"A reading of schema {SCHEMA_VERSION} was expected, this one has "
                f"{data.get('schema')!r}: record it again with the installed pytest-shardcheck."
            )
        return cls(
            rank=data["rank"],
            region=data["region"],
            occurrence=data["occurrence"],
            outermost=data["outermost"],
            implicit=data["implicit"],
            memory=MemoryReading.from_json(data["memory"]),
        )
