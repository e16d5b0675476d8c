"""Each trap of design.md: a naive instrument falls into it, ours does not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode


@pytest.fixture(scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def mesh(group):
    return init_device_mesh("cpu", (1,))


class Naive(TorchDispatchMode):
    """Sum the bytes of plain tensors that operators return, taking every operator."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor:
            self.bytes += result.untyped_storage().nbytes()
        return result


def test_what_a_dtensor_does_inside(counted, mesh):
    value = distribute_tensor(torch.ones(100), mesh, [Shard(0)])
    with Naive() as naive:
        held = value + 1
    assert naive.bytes == 0
    del held
    with counted.region() as region:
        held = value + 1
    assert isinstance(held, DTensor)
    assert region.cpu.growth == 400


def test_what_a_dtensor_works_out_on_fake_tensors(counted, mesh):
    """The first call of an operator and a shape infers the result's shape with fake tensors."""
    value = DTensor.from_local(torch.ones(1_001), mesh, [Shard(0)])
    peaks = []
    for _ in range(2):
        with counted.region() as region:
            value.exp()
        peaks.append(region.cpu.peak - region.cpu.start)
    assert peaks == [4 * 1_001] * 2


def test_the_wait_inside_a_collectives_result(counted, group):
    """The operator that reads an AsyncCollectiveTensor waits for it: nothing is pending then."""
    with counted.region():
        held = funcol.all_reduce(torch.ones(100), "sum", group) + 1
        with counted.region() as after:
            torch.ones(1)
    assert type(held) is torch.Tensor
    assert after.cpu.start == 400  # what is held; unseen, the wait would leave the sum there too


def test_views_are_no_allocations(counted):
    whole = torch.ones(100)
    with Naive() as naive:
        views = [whole[:10], whole.view(10, 10)]
    assert naive.bytes == 800
    with counted.region() as region:
        views = [whole[:10], whole.view(10, 10)]
    assert len(views) == 2
    assert region.cpu.growth == 0


def test_a_resize_is_no_operator(counted):
    with Naive() as naive:
        tensor = torch.ones(100)
        tensor.untyped_storage().resize_(0)
    assert naive.bytes == 400
    with counted.region() as region:
        tensor = torch.ones(100)
        tensor.untyped_storage().resize_(0)
    assert (region.cpu.peak, region.cpu.growth) == (400, 0)


def test_unsharded_parameters_are_regrown_storages(counted, mesh):
    """Their bytes come and go by resizes alone, from the second forward on."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    batch = torch.ones(1, 64)
    with torch.no_grad():
        model(batch)
        with counted.region(model) as region:
            model(batch)
    assert region.cpu.growth == 0
    assert region.cpu.at_peak["unsharded parameters"] >= 4 * 64 * 64
    assert region.cpu.at_peak["parameters"] == 4 * 4 * 64 * 64


def test_unwaited_functional_collectives_keep_their_outputs(counted, group):
    with counted.region() as region:
        for _ in range(3):
            torch.ops._c10d_functional.all_reduce(torch.ones(100), "sum", group.group_name)
    assert region.cpu.growth == 3 * 400
    [record] = region.cpu.grown
    assert (record.bytes, record.count, record.category) == (400, 3, "communication buffers")


@pytest.mark.parametrize("call", ["operator", "function"])
def test_unwaited_functional_collectives_hold_their_arguments_until_the_step_ends(
    call, counted, group
):
    """The function wraps the result by an operator of its own, which is no collective."""
    reduce = {
        "operator": lambda x: torch.ops._c10d_functional.all_reduce(x, "sum", group.group_name),
        "function": lambda x: funcol.all_reduce(x, "sum", group),
    }[call]
    with counted.region() as region:
        for _ in range(3):
            reduce(torch.ones(100))
    assert region.cpu.peak - region.cpu.start == 3 * (400 + 400)  # arguments and results
    assert region.cpu.growth == 3 * 400


def test_waited_functional_collectives_keep_nothing(counted, group):
    with counted.region() as region:
        for _ in range(3):
            funcol.all_reduce(torch.ones(100), "sum", group) + 1
    assert region.cpu.growth == 0


def test_asynchronous_arguments_count_until_the_wait(counted, group):
    with counted.region() as region:
        work = dist.all_reduce(torch.ones(100), async_op=True)
        with counted.region() as before:
            torch.ones(1)
        work.wait()
        del work
    assert before.cpu.end == 400
    assert region.cpu.growth == 0


def keep(state, bucket):
    done = Future()
    done.set_result(bucket.buffer())
    return done


@pytest.mark.parametrize("hook", [None, keep], ids=["all_reduce", "hook"])
def test_a_bucket_that_no_collective_reads_is_still_no_gradient(counted, group, hook):
    """A hook may send a copy, in half precision say, of what the reducer put into the bucket."""
    model = DistributedDataParallel(nn.Linear(16, 16, bias=False))
    if hook is not None:
        model.register_comm_hook(None, hook)
    optimizer = AdamW(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(4, 16)).sum().backward()
        optimizer.step()

    step()
    step()
    with counted.region(model, optimizer) as region:
        step()
    assert region.cpu.at_peak["gradients"] == 1_024
    assert region.cpu.at_peak["communication buffers"] == 1_024


def test_torchs_own_tracker_agrees(counted):
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    optimizer = AdamW(model.parameters())
    batch = torch.ones(8, 32)

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    step()
    with counted.region(model, optimizer) as region:
        step()
    tracker = MemTracker()
    tracker.track_external(model, optimizer, batch)
    with tracker:
        step()
    [figures] = tracker.get_tracker_snapshot("peak").values()
    assert region.cpu.peak == figures["Total"]


def test_compiled_code_compiles(tmp_path):
    """Under a plain mode dynamo skips every frame, and the figures would be those of eager code."""
    script = tmp_path / "compiled.py"
    script.write_text(
        """
import sys
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from counted import Counted

counted = Counted()
counted.start()
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.GELU(), torch.nn.Linear(16, 16))
counter = CompileCounterWithBackend("aot_eager")
compiled = torch.compile(model, backend=counter, fullgraph=True)
batch = torch.ones(4, 16)
for _ in range(3):
    model.zero_grad()
    compiled(batch).sum().backward()
with counted.region(model) as region:
    model.zero_grad()
    compiled(batch).sum().backward()
counted.stop()
assert counter.frame_count == 1, counter.frame_count
assert region.cpu.at_peak["parameters"] == 2 * 4 * (16 * 16 + 16)

def broken(value):
    value = value + 1
    torch._dynamo.graph_break()
    return value * 2

counted = Counted()
counted.start()
counter = CompileCounterWithBackend("eager")
with counted.region() as region:
    held = torch.compile(broken, backend=counter)(torch.ones(10))
counted.stop()
assert counter.frame_count == 2, counter.frame_count
assert region.cpu.end == 40
"""
    )
    paths = [str(__import__("pathlib").Path(__file__).parents[1] / "regression"), *sys.path]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        check=False,
        timeout=250,
        capture_output=True,
        text=True,
        env={**__import__("os").environ, "PYTHONPATH": ":".join(paths)},
    )
    assert done.returncode == 0, done.stderr
