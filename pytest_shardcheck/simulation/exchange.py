"""Move small real tensors between the simulated ranks of a world, through files.

These are what torch tells its peers, as opposed to what a model computes: pickled objects, shapes,
a pipeline's votes. A rank that is not simulated says nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore

if TYPE_CHECKING:
    from pytest_shardcheck.instruments.groups import Group


@dataclass(slots=True, kw_only=True)
class Exchange:
    """What this rank says to the others, and they to it.

    ``running`` are the simulated ranks, all of them numbers in the world.
    """

    rank: int
    running: Sequence[int]
    store: FileStore
    _counts: Counter[str] = field(default_factory=Counter)

    @classmethod
    def over(cls, directory: Path, rank: int, running: Sequence[int]) -> Exchange:
        """Exchange through a file in the world's directory."""
        store = FileStore(str(directory / "exchange"), len(running))
        return cls(rank=rank, running=running, store=store)

    def reaches(self, ranks: Sequence[int]) -> bool:
        """Tell whether all of these ranks are simulated."""
        return set(ranks) <= set(self.running)

    def next_call(self, group: Group) -> str:
        """Return the name of this rank's next collective on a group, the same on all its ranks."""
        return self._numbered(f"{group.name}:{group.ranks}")

    def next_message(self, group: Group, sender: int, receiver: int, tag: int) -> str:
        """Return the name of the next message from one rank of the world to another."""
        return self._numbered(f"{group.name}:{sender}>{receiver}:{tag}")

    def post(self, name: str, tensor: Tensor) -> None:
        """Say something, once; nobody is waited for."""
        data: Any = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        self.store.set(name, data)  # bytes, though its stub says str

    def fetch(self, name: str, into: Tensor) -> None:
        """Wait until it was said."""
        data = bytearray(self.store.get(name))
        into.copy_(torch.frombuffer(data, dtype=into.dtype).view(into.shape))

    def _numbered(self, name: str) -> str:
        self._counts[name] += 1
        return f"{name}#{self._counts[name]}"
