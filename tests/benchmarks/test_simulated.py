"""What Llama-2-70B costs to simulate: seconds of a core and memory of one rank, a row a world, and
what a step costs that is measured, against one that is not.

`pytest tests/benchmarks/test_simulated.py -rP` prints them; half a minute a world on a free core.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "regression"))

from llama import sharded, step

from pytest_shardcheck.instruments import Meter

LAYERS = 80

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(3600)]


@pytest.mark.world_size(8, 64, 1024, simulate=True, ranks=[0], timeout=1800)
def test_tracked(device_mesh, shardcheck, world):
    took(device_mesh, world, shardcheck.measure)


@pytest.mark.world_size(64, simulate=True, ranks=[0], timeout=1800)
def test_measured_against_not(device_mesh):
    """In turns, in one process: two processes differ by more than what is looked for."""
    model, optimizer = sharded(LAYERS, device_mesh, reshard=True)
    for _ in range(2):
        step(model, optimizer)
    gc.collect()
    gc.freeze()  # as where a test asks for `shardcheck`
    seconds = {"not": [], "measured": [], "with the region's begin and end": []}
    meter = Meter(0, "cpu")
    instruments = meter._panel
    instruments.stop()

    def one():
        step(model, optimizer)

    def measured():
        with meter.measure(model, optimizer):
            seconds["measured"].append(cost(one))

    for _ in range(5):
        seconds["not"].append(cost(one))
        instruments.start()
        seconds["with the region's begin and end"].append(cost(measured))
        instruments.stop()
    alone = seconds.pop("not")
    ratios = {
        name: median(ours / bare for ours, bare in zip(values, alone, strict=True))
        for name, values in seconds.items()
    }
    print(f"{median(alone):.1f} s a step;", ", ".join(f"{n} {r:.2f}" for n, r in ratios.items()))


def cost(function):
    began = time.process_time()
    function()
    return time.process_time() - began


def took(mesh, world, around):
    seconds = {"before": time.process_time()}
    began = time.process_time()
    model, optimizer = sharded(LAYERS, mesh, reshard=True)
    seconds["built and sharded"] = time.process_time() - began
    for name in ("first step", "second step", "third step"):
        with around(model, optimizer):
            began = time.process_time()
            step(model, optimizer)
            seconds[name] = time.process_time() - began
    gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    parts = ", ".join(f"{name} {of:.1f} s" for name, of in seconds.items())
    print(f"world {world.size}: {parts}, {gib:.2f} GiB")
