"""The test under torch's own base class, in a file of its own: only this way pays its imports."""

from __future__ import annotations

import torch.distributed as dist
from sum_of_ranks import check_sum
from torch.testing._internal.common_distributed import MultiProcessTestCase


class _Sum(MultiProcessTestCase):
    size = 0

    @property
    def world_size(self) -> int:
        return self.size

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def test_sum(self) -> None:
        rendezvous = f"file://{self.file_name}"
        dist.init_process_group(
            "gloo", init_method=rendezvous, rank=self.rank, world_size=self.world_size
        )
        check_sum()
        dist.destroy_process_group()


class Sum2(_Sum):
    size = 2


class Sum4(_Sum):
    size = 4
