"""Marker arguments → expectations → verdicts. No torch here."""

from pytest_shardcheck.expectations.closeness import applicable, check_world_sizes
from pytest_shardcheck.expectations.expectation import MARKERS, Expectation
from pytest_shardcheck.expectations.judge import Readings, judge, judge_given
from pytest_shardcheck.expectations.narrowing import Narrowing
from pytest_shardcheck.expectations.parse import parse_expectation
from pytest_shardcheck.expectations.public import max_memory, memory

__all__ = [
    "MARKERS",
    "Expectation",
    "Narrowing",
    "Readings",
    "applicable",
    "check_world_sizes",
    "judge",
    "judge_given",
    "max_memory",
    "memory",
    "parse_expectation",
]
