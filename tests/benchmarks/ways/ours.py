"""Worlds of ours, SHARDCHECK_BENCH_TESTS of them; run in a session of their own."""

from __future__ import annotations

import os

import pytest
from sum_of_ranks import check_sum

SIZE = int(os.environ["SHARDCHECK_BENCH_SIZE"])
TESTS = int(os.environ["SHARDCHECK_BENCH_TESTS"])


@pytest.mark.world_size(SIZE)
@pytest.mark.parametrize("number", range(TESTS))
def test_sum(number, process_group):
    check_sum()
