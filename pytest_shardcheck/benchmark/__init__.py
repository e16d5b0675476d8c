"""pytest-benchmark over ranks. Importing it imports neither pytest-benchmark nor torch."""

from pytest_shardcheck.benchmark.names import pytest_benchmark_group_stats
from pytest_shardcheck.benchmark.session import deliver

__all__ = ["deliver", "pytest_benchmark_group_stats"]
