"""What following a training step costs: bare, under us, and under torch's own tools, in one run.

DDP over a process group of one rank, so that collectives are seen. The variants take turns, each
figure is the smallest of its rounds, and no time is asserted.
"""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from pytest_shardcheck.instruments import Meter, c10d_tap
from pytest_shardcheck.vocabulary.demands import Demands

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]

BARE = "bare"


def m8():
    return nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))), torch.randn(32, 256)


def transformer():
    """Eight encoder layers of width 512: 25 million parameters; 1,024 tokens."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 8), torch.randn(8, 128, 512)


@pytest.fixture
def one_rank(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a rank
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    c10d_tap.install()
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


@contextmanager
def under_mem_tracker(model, optimizer):
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        yield


@pytest.mark.parametrize(("build", "rounds"), [(m8, 60), (transformer, 6)], ids=["m8", "25M"])
def test_step(benchmark, figures, one_rank, build, rounds):
    module, batch = build()
    model = DistributedDataParallel(module)
    optimizer = AdamW(model.parameters())
    meters = {
        "pytest-shardcheck": Meter(0, "cpu"),
        "with a timeline": Meter(0, "cpu", Demands(timeline=True)),
    }

    def followed(way):
        return lambda: meters[way].measure(model, optimizer)

    ways = {
        BARE: nullcontext,
        **{way: followed(way) for way in meters},
        "MemTracker": lambda: under_mem_tracker(model, optimizer),
        "CommDebugMode": CommDebugMode,
    }
    seconds = {way: [] for way in ways}  # of the step alone
    opened = {way: [] for way in ways}  # with what it costs to begin and to end

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    def take_turns():
        for way, context in ways.items():
            if way in meters:
                meters[way]._panel.start()  # the others must run without us
            gc.collect()  # no way pays for the garbage of the one before
            start = time.perf_counter()
            with context():
                begun = time.perf_counter()
                step()
                seconds[way].append(time.perf_counter() - begun)
            opened[way].append(time.perf_counter() - start)
            if way in meters:
                meters[way]._panel.stop()

    for meter in meters.values():
        meter._panel.stop()
    take_turns()
    take_turns()
    for times in [*seconds.values(), *opened.values()]:
        times.clear()
    # As in a rank: regions collect garbage, and not through what was there before.
    gc.collect()
    gc.freeze()
    try:
        benchmark.pedantic(take_turns, rounds=rounds)
    finally:
        gc.unfreeze()
    bare = min(seconds[BARE])
    ratios = ", ".join(
        f"{way} {min(seconds[way]) / bare:.3f} ({min(opened[way]) / bare:.3f} entered for it alone)"
        for way in ways
        if way != BARE
    )
    figures.lines.append(
        f"a step of {build.__name__}, bare {bare * 1000:.1f} ms; times that: {ratios}"
    )
