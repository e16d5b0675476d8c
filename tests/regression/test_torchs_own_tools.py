"""Readings against what torch records itself: its flight recorder and its memory trackers.

The backend writes the flight recorder, below any dispatch. The trackers are dispatch modes like
ours, with a bookkeeping of their own: weak references to storages, and a patched `resize_`.
"""

from __future__ import annotations

import json
from math import prod

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from models import m8
from steps import step
from torch._C._distributed_c10d import _dump_fr_trace_json
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.optim import AdamW
from wrapped import ddp, fsdp2, zero1

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
]


def plain(model, _):
    return model, AdamW(model.parameters())


def fsdp1(model, _):
    for number, layer in enumerate(model):
        model[number] = FullyShardedDataParallel(layer, device_id="cpu")
    model = FullyShardedDataParallel(model, device_id="cpu")
    return model, AdamW(model.parameters())


def fsdp2_unsharded(model, mesh):
    return fsdp2(model, mesh, reshard=False)


def trained_by(*builds):
    return pytest.mark.parametrize("build", builds, ids=lambda build: build.__name__)


def trained_twice(build, mesh):
    model, optimizer = build(m8(), mesh)
    step(model, optimizer)
    step(model, optimizer)
    return model, optimizer


# The flight recorder

ELEMENT = {"Byte": 1, "Float": 4, "Int": 4, "Long": 8}


@pytest.fixture
def recorded(monkeypatch):
    """Give the calls that the flight recorder has got since the last question."""
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "2000")  # read once, at the first call; 0 is off
    seen = 0

    def new_calls():
        nonlocal seen
        entries = json.loads(_dump_fr_trace_json()).get("entries", [])[seen:]
        seen += len(entries)
        return [(e["profiling_name"].removeprefix("gloo:"), payload(e)) for e in entries]

    return new_calls


def payload(entry):
    """The bytes of an entry's outputs, which for what gloo runs is the payload of nccl-tests."""
    sizes, dtypes = entry["output_sizes"], entry["output_dtypes"]
    return sum(prod(size) * ELEMENT[dtype] for size, dtype in zip(sizes, dtypes, strict=True))


def as_gloo_runs_them(reading):
    """Our calls under gloo's names: it has no reduce_scatter, reduces all and keeps its part."""
    gloos = {"reduce_scatter": "all_reduce"}
    return [
        (gloos.get(call.operation, call.operation), call.bytes)
        for call in reading.collectives.calls
    ]


@trained_by(ddp, zero1, fsdp1, fsdp2, fsdp2_unsharded)
def test_the_flight_recorder_has_the_calls_of_a_step(build, recorded, device_mesh, shardcheck):
    model, optimizer = trained_twice(build, device_mesh)
    recorded()
    with shardcheck.measure(model, optimizer) as reading:
        step(model, optimizer)
    assert as_gloo_runs_them(reading) == recorded() != []


# But for gather and scatter, of which an entry has only what is on its own rank.
def test_it_has_each_kind_of_collective(recorded, process_group, shardcheck):
    x = torch.ones(4)
    with shardcheck.measure() as reading:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        funcol.wait_tensor(funcol.all_reduce(x, "sum", process_group))
        dist.all_gather([torch.empty(4), torch.empty(4)], x)
        dist.all_gather_into_tensor(torch.empty(8), x)
        dist.reduce_scatter_tensor(torch.empty(2), x)
        dist.broadcast(x, 0)
        dist.reduce(x, 0)
        dist.all_to_all_single(torch.empty(4), x)
        dist.barrier()
        dist.all_gather_object([None, None], 1)  # the sizes of the pickles, then they
        with dist._coalescing_manager():  # one call, of both
            dist.all_reduce(x)
            dist.all_reduce(x)
    assert as_gloo_runs_them(reading) == recorded() != []


def test_it_has_no_messages(recorded, process_group, world, shardcheck):
    with shardcheck.measure() as reading:
        dist.monitored_barrier()
        if world.rank == 0:
            dist.send(torch.ones(4), 1)
        else:
            dist.recv(torch.ones(4), 0)
    assert recorded() == []
    assert reading.collectives.total.count == 2


# The memory trackers


def third_step(shardcheck, model, optimizer, *known):
    """Measure a step inside a tracker that was given what it is to know.

    The tracker is inside of our region, where gloo's threads have let go of what is finished.
    Alone, 2 of 120 steps of FSDP2 had a peak of 66,048 B more: what such a thread still held.
    """
    if isinstance(model, FSDPModule):
        tracker = FSDPMemTracker(model, optimizer)
    else:
        tracker = MemTracker()
        tracker.track_external(*known)
    with shardcheck.measure(model, optimizer) as reading, tracker:
        step(model, optimizer)
    return reading.memory, snapshot(tracker, "peak"), snapshot(tracker, "current")


def snapshot(tracker, when):
    """Its bytes by the words that it prints; the keys hash as their names, which are others."""
    of_cpu = tracker.get_tracker_snapshot(when)[torch.device("cpu")]
    return {getattr(kind, "value", kind): size for kind, size in of_cpu.items()}


@trained_by(plain, ddp, zero1, fsdp1, fsdp2, fsdp2_unsharded)
def test_a_tracker_has_the_same_peak_and_the_same_at_rest(build, device_mesh, shardcheck):
    model, optimizer = trained_twice(build, device_mesh)
    inner = getattr(optimizer, "optim", optimizer)  # the state of ZeRO-1's own is empty
    memory, peak, rest = third_step(shardcheck, model, optimizer, model, inner)
    unknown = device_mesh.mesh.nbytes  # to a tracker, which was not there when it was made
    assert memory.peak - peak["Total"] == memory.live - rest["Total"] == unknown


def test_a_tracker_does_not_look_into_zero1(device_mesh, shardcheck):
    model, optimizer = trained_twice(zero1, device_mesh)
    memory, peak, rest = third_step(shardcheck, model, optimizer, model, optimizer)
    # What it was not given joins when it is used. Its peak is the last weight's step, after which
    # come the rank's four biases: two moments of 256 x 4 B and a count of 4 B each.
    unused = 4 * (2 * 256 * 4 + 4)
    assert memory.peak - peak["Total"] == unused + device_mesh.mesh.nbytes
    assert memory.live - rest["Total"] == device_mesh.mesh.nbytes


@pytest.mark.parametrize(
    ("build", "words"),
    [
        pytest.param(
            ddp,
            {
                "parameters": ["Parameter"],
                "gradients": ["Gradient"],
                "communication buffers": ["Temp"],  # all that is new in backward: the buckets
            },
            id="ddp",
        ),
        pytest.param(
            fsdp2,
            {
                "parameters": ["Sharded Param"],
                "unsharded parameters": ["Unsharded Param"],
                "communication buffers": ["All Gather", "Reduce Scatter"],
                "optimizer state": ["OptState"],
            },
            id="fsdp2",
        ),
    ],
)
def test_a_tracker_says_the_same_of_the_peak(build, words, device_mesh, shardcheck):
    model, optimizer = trained_twice(build, device_mesh)
    memory, peak, _ = third_step(shardcheck, model, optimizer, model, optimizer)
    theirs = {ours: sum(peak[word] for word in their) for ours, their in words.items()}
    assert {ours: memory.at_peak[ours] for ours in words} == theirs


@trained_by(plain, ddp, fsdp2)
def test_a_tracker_has_the_same_state(build, device_mesh, shardcheck):
    model, optimizer = trained_twice(build, device_mesh)
    memory, _, rest = third_step(shardcheck, model, optimizer, model, optimizer)
    words = ["Parameter", "Gradient", "Optstate"]
    if build is fsdp2:
        words = ["Sharded Param", "Sharded Grad", "OptState"]
    assert [memory.params, memory.grads, memory.optimizer] == [rest[word] for word in words]
