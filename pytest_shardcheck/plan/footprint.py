"""What one GPU holds in a world of some size, and what can say so: a formula or a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pytest_shardcheck.plan.questions import SimulatedStep
from pytest_shardcheck.vocabulary.plain import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Part(Plain):
    """One thing that takes memory, in bytes; `divided` where more GPUs make it smaller."""

    name: str
    bytes: int
    divided: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint(Plain):
    """What the GPU that holds most has at its peak, in a world of `world` GPUs.

    Their product with the tensor-parallel size is the world: `shards` hold the state of one model
    together, `replicas` do the same beside each other. `step` is what a simulation measured, which
    tells its state at rest from its peak; None of a closed form.
    """

    world: int
    shards: int
    replicas: int
    parts: tuple[Part, ...]
    step: SimulatedStep | None = None

    @property
    def total(self) -> int:
        """Return the bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def state(self) -> int:
        """Return the bytes of the model state: what there is between steps."""
        if self.step is not None:
            return self.step.state
        return sum(part.bytes for part in self.parts if part.name not in TRANSIENT)


# The parts that are no model state.
ACTIVATIONS = "activations"
RECOMPUTED = "recomputed activations"
BUFFERS = "buffers"
# Of a simulation, those of modules: they are model state.
MODULE_BUFFERS = "module buffers"
TRANSIENT = frozenset({ACTIVATIONS, RECOMPUTED, BUFFERS})


class Estimate(Protocol):
    """What knows the footprint of a world: a closed form, or a simulation of it."""

    @property
    def name(self) -> str:
        """Name the way to shard, as a column of the table has it: "ZeRO-3"."""

    def footprint(self, world: int) -> Footprint:
        """Return what one GPU of `world` holds. Raises UsageError where there is no such world."""


class ShrinkingEstimate(Estimate, Protocol):
    """An estimate that never grows with the world, so that a search may skip worlds."""

    @property
    def step(self) -> int:
        """Return the smallest world; the others are its multiples."""

    @property
    def most(self) -> int:
        """Return a world from which on nothing shrinks any more."""
