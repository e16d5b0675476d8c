"""Names that say what a world measured, for the tables of pytest-benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_shardcheck.vocabulary.units import format_size


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_group_stats(
    config: Any, benchmarks: Any, group_by: str
) -> list[tuple[Any, list[Any]]]:
    """Group as pytest-benchmark does, and write what was measured behind each world's name.

    Its tables have no column for extra information. Import this in the ``conftest.py`` of the
    folder where ``pytest-benchmark compare`` runs, which is the only thing that it looks for hooks
    in; a session uses it as well.
    """
    from pytest_benchmark.plugin import pytest_benchmark_group_stats as group

    groups: list[tuple[Any, list[Any]]] = group(config, benchmarks, group_by)
    for _, group_of in groups:
        for benchmark in group_of:
            benchmark["name"] += describe(benchmark.get("extra_info") or {})
    return groups


def describe(info: Mapping[str, Any]) -> str:
    """Return a world's extra information in a line; nothing where a benchmark has no world."""
    if "world_size" not in info:
        return ""
    parts = [str(info.get("backend", ""))]
    for name, value in info.items():
        figure, _, region = name.partition(" ")
        text = _text(figure, value)
        parts.append(f"{text} {region}".strip() if text else "")
    return f" | {', '.join(filter(None, parts))}"


def _text(figure: str, value: Any) -> str:
    """Return a figure of ours in words; nothing of what a test put there itself."""
    if figure in ("peak", "state") and isinstance(value, int):
        return f"{figure} {format_size(value)}"
    if figure == "wire_bytes" and isinstance(value, int):
        return f"{format_size(value)} on the wire"
    if figure == "collectives" and isinstance(value, Mapping):
        return f"{sum(value.values())} collectives"
    return ""
