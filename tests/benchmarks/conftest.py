"""Keep what the benchmarks of one run measured, and print it as ratios."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

OURS = "pytest-shardcheck"


@dataclass
class Figures:
    """Seconds, all measured in this run."""

    per_test_s: dict[tuple[str, int], float] = field(default_factory=dict)  # by way and world size
    lines: list[str] = field(default_factory=list)


_FIGURES = pytest.StashKey[Figures]()


def pytest_configure(config):
    config.stash[_FIGURES] = Figures()


@pytest.fixture
def figures(request, benchmark):
    if benchmark.disabled:
        pytest.skip("benchmarks are disabled: there is nothing to compare")
    return request.config.stash[_FIGURES]


def pytest_terminal_summary(terminalreporter, config):
    figures = config.stash[_FIGURES]
    lines = [*_table(figures.per_test_s), *figures.lines]
    if lines:
        terminalreporter.section("worlds, as ratios of this run")
        terminalreporter.write_line("\n".join(lines))


def _table(per_test_s):
    sizes = sorted({size for _, size in per_test_s})
    if sizes:
        heads = "".join(f"{f'{size} ranks':>10}{'/ ours':>9}" for size in sizes)
        yield f"{'one test under':<28}{heads}"
    ways = {way for way, _ in per_test_s}
    for way in sorted(ways, key=lambda way: (way != OURS, way)):
        yield f"{way:<28}" + "".join(_cell(per_test_s, way, size) for size in sizes)


def _cell(per_test_s, way, size):
    seconds, ours = per_test_s.get((way, size)), per_test_s.get((OURS, size))
    if seconds is None:
        return " " * 19
    return f"{seconds:>8.3f} s" + (f"{seconds / ours:>8.1f}x" if ours else " " * 9)
