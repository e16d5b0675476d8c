"""The CPU allocator's own peak, through the profiler's events."""

from __future__ import annotations

import pytest
import torch

from pytest_shardcheck.instruments.allocator import Allocator
from pytest_shardcheck.instruments.holdings import Holdings
from pytest_shardcheck.instruments.panel import Panel
from pytest_shardcheck.instruments.watched import Watched
from pytest_shardcheck.vocabulary import NoFrameworks, UsageError
from pytest_shardcheck.vocabulary.demands import Demands

MIB = 1 << 20


@pytest.fixture
def allocator():
    followed = Allocator("cpu", on_cpu=True)
    followed.start()
    yield followed
    followed.stop()


def test_a_peak_that_no_longer_lives(allocator: Allocator) -> None:
    region = allocator.open()
    for _ in range(2):  # in turn, not together
        torch.empty(4 * MIB, dtype=torch.uint8)
    assert allocator.close(region).allocated == {"cpu": 4 * MIB}


def test_what_was_held_before_the_region_counts(allocator: Allocator) -> None:
    held = torch.empty(MIB, dtype=torch.uint8)
    region = allocator.open()
    torch.empty(MIB, dtype=torch.uint8)
    assert allocator.close(region).allocated == {"cpu": 2 * MIB}
    del held
    region = allocator.open()
    assert allocator.close(region).allocated == {"cpu": 0}


def test_regions_nest(allocator: Allocator) -> None:
    outer = allocator.open()
    torch.empty(3 * MIB, dtype=torch.uint8)
    inner = allocator.open()
    torch.empty(MIB, dtype=torch.uint8)
    assert allocator.close(inner).allocated == {"cpu": MIB}
    assert allocator.close(outer).allocated == {"cpu": 3 * MIB}


def test_it_sees_workspaces_inside_an_operator(allocator: Allocator) -> None:
    values = torch.randn(1000)
    region = allocator.open()
    torch.sort(values)
    held_and_outputs = values.nbytes + 1000 * 4 + 1000 * 8
    assert allocator.close(region).allocated["cpu"] > held_and_outputs


def test_garbage_is_in_no_region() -> None:
    panel = Panel("cpu", Demands(allocated=True), NoFrameworks(), on_phase=lambda _: None)
    panel.start()
    try:
        cycle = [torch.empty(MIB, dtype=torch.uint8)]
        cycle.append(cycle)
        del cycle
        windows = panel.open("step", Holdings(Watched().open()), saved=False)
        measured = panel.close(windows, Holdings(Watched().open()))
    finally:
        panel.stop()
    assert measured.allocated == {"cpu": measured.live["cpu"].peak} == {"cpu": 0}


def test_a_profile_that_runs_is_in_the_way() -> None:
    with torch.profiler.profile(), pytest.raises(UsageError, match="another profile runs"):
        Allocator("cpu", on_cpu=True).start()


def test_a_profile_inside_a_region_is_in_the_way(allocator: Allocator) -> None:
    region = allocator.open()
    with torch.profiler.profile():
        torch.empty(MIB)
    with pytest.raises(UsageError, match="another profile runs"):
        allocator.close(region)


def test_the_cpu_is_followed_only_when_asked() -> None:
    allocator = Allocator("cpu", on_cpu=False)
    allocator.start()
    region = allocator.open()
    torch.empty(MIB)
    assert allocator.close(region).allocated == {}
    allocator.stop()
