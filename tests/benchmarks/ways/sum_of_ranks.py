"""The test that every way runs, and its ranks under torch's own ways to start them.

Torch's ways destroy the group: otherwise gloo's threads abort some interpreters that shut down.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def check_sum() -> None:
    """Add a one of each rank."""
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()


def run_spawned(rank: int, size: int, rendezvous: str) -> None:
    """Be a rank of ``torch.multiprocessing.spawn``."""
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=size)
    check_sum()
    dist.destroy_process_group()


if __name__ == "__main__":  # a rank of torchrun
    dist.init_process_group("gloo")
    check_sum()
    dist.destroy_process_group()
