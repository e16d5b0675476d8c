"""What the ``world`` fixture hands to a test. Runs in a rank."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from pytest_shardcheck.worlds.rank import RankContext


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The world as one of its ranks sees it.

    ``mesh`` maps axis names to lengths, in order; ``tmp_path`` is this rank's own directory (the
    fixture ``tmp_path`` is the one that all ranks share).
    """

    rank: int
    size: int
    # Left out of the repr, so that the same failed assertion reads the same on every rank.
    local_rank: int = field(repr=False)
    backend: str
    device: str
    mesh: dict[str, int]
    simulated: bool
    tmp_path: Path = field(repr=False)


def place_of(context: RankContext) -> World:
    """Return the place of a rank in its world."""
    spec = context.order.spec
    return World(
        rank=context.rank,
        size=spec.size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        backend=spec.backend,
        device=context.device,
        mesh=spec.mesh,
        simulated=spec.simulated,
        tmp_path=context.own_tmp_path,
    )
