"""The worlds that a test asks for, as plain data."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.plain import Plain

if TYPE_CHECKING:
    pass

_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}


def default_backend(device: str) -> str:
    """Name the backend of a world on `device` ("cpu" or "cuda") that asks for none."""
    return _BACKENDS.get(device, "gloo")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec(Plain):
    """Describe one world; callables that are given as a value receive it.

    `timeout_s` is in seconds (None: the session's). `named_axes` is (axis, length) pairs, the last
    axis fastest. `ranks` are those of a simulated world that run; None in a simulated one that has
    not chosen yet, and in others, where all do. Raises UsageError where the mesh does not hold
    `size` ranks, or a rank is not in the world.
    """

    size: int
    backend: str = "gloo"
    device: str = "cpu"
    named_axes: tuple[tuple[str, int], ...] = ()
    timeout_s: float | None = None
    simulated: bool = False
    ranks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a size below one and a mesh of another size."""
        if self.size < 1:
            raise UsageError(f"A world has at least one rank, not {self.size}.")
        held = math.prod(length for _, length in self.axes)
        if held != self.size:
            raise UsageError(f"The mesh {self.mesh} holds {held} ranks, not {self.size}.")
        if self.ranks is not None and not self.simulated:
            raise UsageError("Only of a simulated world can some ranks run without the others.")
        if self.ranks is not None and not set(self.ranks) <= set(range(self.size)):
            raise UsageError(f"Not all of {self.ranks} are ranks of a world of {self.size}.")
        if self.ranks == ():
            raise UsageError(f"No rank of a world of {self.size} would run.")

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Name the axes and their lengths: those of the mesh, or one that is called "world"."""
        return self.named_axes or (("world", self.size),)

    @property
    def mesh(self) -> dict[str, int]:
        """Map the axes to their lengths, in order, as the fixture `world` does."""
        return dict(self.axes)

    @property
    def running(self) -> tuple[int, ...]:
        """Return the ranks that run: all, or those that are simulated, in order."""
        return tuple(range(self.size)) if self.ranks is None else self.ranks

    @property
    def id(self) -> str:
        """Name the world in a test id: its size or mesh, and whatever is not the default."""
        shape = "x".join(f"{axis}{length}" for axis, length in self.named_axes)
        parts = [shape or f"world{self.size}"]
        if self.device != "cpu":
            parts.append(self.device)
        if self.backend != default_backend(self.device):
            # `-k` can't parse the comma of "cpu:gloo,cuda:gloo".
            parts.append(re.sub(r"\W+", "-", self.backend))
        if self.simulated:
            parts.append("simulated")
        return "-".join(parts)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Place `rank` on every axis, row major. Raises IndexError outside of the world."""
        if not 0 <= rank < self.size:
            raise IndexError(f"rank {rank} is not in a world of {self.size}")
        place: dict[str, int] = {}
        for axis, length in reversed(self.axes):
            rank, place[axis] = divmod(rank, length)
        return {axis: place[axis] for axis, _ in self.axes}
