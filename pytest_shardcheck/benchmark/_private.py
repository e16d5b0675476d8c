"""What we use of pytest-benchmark that it does not document; imported only where it is active.

There is no public way to decide rounds elsewhere, nor to add a result that was timed elsewhere.
``tests/benchmark/test_private.py`` fails by name when a version changes one of these:

- ``BenchmarkFixture._raw`` and ``_raw_pedantic`` choose how often to call the function, from
  ``_calibrate_timer`` and from what ``_make_runner``'s function returns: seconds, and also the
  function's result where it is given no range.
- ``_make_stats`` makes the ``Metadata`` that is ``benchmark.stats``; ``_save_cprofile`` fills it.
- ``weave`` and ``patch`` are one and the same.
- ``Metadata`` reads what ``Result`` has, and ``Metadata.stats.data`` are seconds of one call.
- The session is the plugin named ``pytest-benchmark``; its ``benchmarks`` are a list of them.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Final

import pytest
from pytest_benchmark import fixture, stats
from pytest_benchmark.fixture import BenchmarkFixture

__all__ = [
    "SESSION",
    "BenchmarkFixture",
    "Result",
    "add_result",
    "fill",
    "paused",
    "profile_from",
    "profile_of",
]

SESSION: Final = "pytest-benchmark"


@dataclass(frozen=True, slots=True)
class _Profile:
    """What pytest-benchmark reads of a ``pstats.Stats``."""

    stats: dict[tuple[str, int, str], tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What ``Metadata`` takes from a fixture, and what was timed: seconds of one call."""

    name: str
    fullname: str
    group: str | None
    param: str | None
    params: dict[str, Any] | None
    extra_info: dict[str, Any]
    options: dict[str, Any]
    iterations: int
    seconds: list[float]
    cprofile_stats: _Profile | None
    has_error: bool = False


def paused() -> contextlib.AbstractContextManager[Any]:
    """Pause coverage and profilers, as pytest-benchmark does around what it times."""
    manager: contextlib.AbstractContextManager[Any] = fixture.PauseInstrumentation()
    return manager


def fill(benchmark: BenchmarkFixture, iterations: int, seconds: list[float]) -> None:
    """Give ``benchmark.stats`` to a rank that decided nothing."""
    benchmark._make_stats(iterations).stats.data = list(seconds)


def profile_of(benchmark: BenchmarkFixture) -> list[Any]:
    """Return the profile that ``--benchmark-cprofile`` made, as plain data; empty without."""
    profile = benchmark.stats.cprofile_stats
    return [[list(key), list(value[:4])] for key, value in profile.stats.items()] if profile else []


def profile_from(data: list[Any]) -> _Profile | None:
    """Return what ``profile_of`` wrote."""
    return _Profile({tuple(key): tuple(value) for key, value in data}) if data else None


def add_result(config: pytest.Config, result: Result) -> None:
    """Add a result to the session's, as if one of its fixtures had timed it."""
    metadata = stats.Metadata(result, result.iterations, result.options)
    metadata.stats.data = result.seconds
    config.pluginmanager.getplugin(SESSION).benchmarks.append(metadata)
