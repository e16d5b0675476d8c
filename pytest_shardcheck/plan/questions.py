"""What a planner asks of a simulated rank, and what that answers: plain data, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pytest_shardcheck.vocabulary.plain import Plain

ANSWER: Final = "answer.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Plain):
    """One rank of one world, to train a model for a few steps.

    `directory` is where the rank leaves its `ANSWER`.
    """

    model: str
    strategy: str
    shard: int | None
    units: tuple[str, ...]
    optimizer: str
    world: int
    rank: int
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent(Plain):
    """The calls of one operation in a step, and what each rank put on the wire for them (bytes)."""

    count: int
    wire_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep(Plain):
    """What one rank did in one steady step. Sizes are bytes.

    `params`, `grads`, `optimizer` and `buffers` are its state at rest, `live` all that was alive
    then, `at_peak` what was alive at the peak (category to bytes, whose sum is `peak`) and
    `collectives` what it sent. `parameters` and `tensors` count those of the whole model, `units`
    its blocks that are gathered on their own (class to number). Without a batch (`ran` is false)
    there was no forward and no backward: gradients were given, and the optimizer stepped.
    """

    rank: int
    params: int
    grads: int
    optimizer: int
    buffers: int
    live: int
    peak: int
    at_peak: Mapping[str, int]
    collectives: Mapping[str, Sent]
    parameters: int
    tensors: int
    dtypes: tuple[str, ...]
    units: Mapping[str, int] = field(default_factory=dict)
    ran: bool = True

    @property
    def state(self) -> int:
        """Return the model state: what there is between steps."""
        return self.params + self.grads + self.optimizer + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply(Plain):
    """What a rank answers: its step, or why there is none."""

    step: SimulatedStep | None = None
    error: str = ""
    traceback: str = ""
