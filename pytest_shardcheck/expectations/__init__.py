"""Marker arguments → expectations → verdicts. No torch here."""

from pytest_shardcheck.expectations.closeness import applicable, check_world_sizes
from pytest_shardcheck.expectations.demands import demands_of
from pytest_shardcheck.expectations.expectation import MARKERS, Expectation
from pytest_shardcheck.expectations.judge import Readings, judge, judge_given
from pytest_shardcheck.expectations.narrowing import Narrowing
from pytest_shardcheck.expectations.parse import parse_expectation
from pytest_shardcheck.expectations.public import (
    collectives,
    max_collectives,
    max_memory,
    max_saved_activations,
    memory,
    saved_activations,
)
from pytest_shardcheck.expectations.simulated_ranks import with_ranks

__all__ = [
    "MARKERS",
    "Expectation",
    "Narrowing",
    "Readings",
    "applicable",
    "check_world_sizes",
    "collectives",
    "demands_of",
    "judge",
    "judge_given",
    "max_collectives",
    "max_memory",
    "max_saved_activations",
    "memory",
    "parse_expectation",
    "saved_activations",
    "with_ranks",
]
