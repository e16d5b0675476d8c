"""What holds of every system: its peak is the allocator's, its calls are torch's, its steps equal.

The systems are those of `systems`, and of the tables in docs/systems.
"""

from __future__ import annotations

import os

import pytest
from systems import SYSTEMS
from torch.distributed.tensor.debug import CommDebugMode

STEPS = int(os.environ.get("STEADY_STEPS", "5"))

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # 2.13 renames


def over(*sizes):
    """Run on each of these systems that has exactly these world sizes."""
    chosen = [system for system in SYSTEMS if system.sizes == sizes]

    def decorate(function):
        function = pytest.mark.world_size(*sizes)(function)
        return pytest.mark.parametrize("system", chosen, ids=lambda system: system.id)(function)

    return decorate


def trained_twice(system, mesh):
    for package in system.packages:
        pytest.importorskip(package)
    training = system.build(mesh)
    training.step()
    training.step()
    return training


def hold(system, mesh, shardcheck):
    training = trained_twice(system, mesh)
    with shardcheck.measure(*training.watched) as reading:
        training.step()
    memory = reading.memory
    least, most = system.share
    assert least <= memory.peak / memory.allocated <= most
    assert sum(memory.at_peak.values()) == memory.peak
    assert memory.growth == 0


@over(2, 4)
@pytest.mark.max_memory(allocated="1 GB")  # naming it follows the allocator
def test_the_peak_is_the_allocators(system, device_mesh, shardcheck):
    hold(system, device_mesh, shardcheck)
