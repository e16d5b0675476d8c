"""What Llama-2-70B costs to simulate: seconds of a core and memory of one rank, a row a world.

`pytest tests/benchmarks/test_simulated.py -rP` prints them; half a minute a world on a free core.
"""

from __future__ import annotations

import resource
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "regression"))

from llama import sharded, step

LAYERS = 80

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(3600)]


@pytest.mark.world_size(8, 64, 1024, simulate=True, ranks=[0], timeout=1800)
def test_tracked(device_mesh, shardcheck, world):
    took(device_mesh, world, shardcheck.measure)


@pytest.mark.world_size(64, simulate=True, ranks=[0], timeout=1800)
def test_untracked(device_mesh, world):
    took(device_mesh, world, lambda *_: nullcontext())


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
