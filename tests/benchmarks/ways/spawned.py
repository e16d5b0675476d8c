"""Five two-rank tests under ``torch.multiprocessing.spawn``; run in a session of their own."""

from __future__ import annotations

import pytest
import sum_of_ranks
import torch.multiprocessing


@pytest.mark.parametrize("number", range(5))
def test_sum(number, tmp_path):
    arguments = (2, (tmp_path / "rendezvous").as_uri())
    torch.multiprocessing.spawn(sum_of_ranks.run_spawned, arguments, nprocs=2)
