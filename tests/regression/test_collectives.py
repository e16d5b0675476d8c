"""Collectives of one steady step, exact: counts, bytes, and what each costs on the wire.

M8 is 8 Linear(256, 256), P = 2,105,344 B; world 2 unless a test says otherwise.
"""

from __future__ import annotations

from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.distributed as dist
from models import Net16, m8, m8_batch, net16_batch, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW
from torch.utils.checkpoint import checkpoint

from pytest_shardcheck import CollectivesReading

P = 2_105_344
LAYER = P // 8

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
]


class Region:
    reading: CollectivesReading

    @property
    def counts(self) -> dict[str, int]:
        return {name: self.reading[name].count for name in self.reading}

    def of(self, phase: str) -> dict[str, int]:
        its = self.reading.phase(phase)
        return {name: its[name].count for name in its}


@pytest.fixture
def collectives(shardcheck):
    @contextmanager
    def region():
        opened = Region()
        with shardcheck.measure() as measured:
            yield opened
        opened.reading = measured.collectives

    return region


def steady(collectives, model, optimizer, batch) -> Region:
    train(model, optimizer, batch, steps=2)
    with collectives() as region:
        train(model, optimizer, batch, steps=1)
    return region


# Section 5 of the design


def test_ddp(process_group, collectives):
    model = DistributedDataParallel(m8())
    optimizer = AdamW(model.parameters())
    counts = []
    for _ in range(3):
        with collectives() as region:
            train(model, optimizer, m8_batch(), steps=1)
        counts.append(region.counts)
    # The second step rebuilds the buckets: their order and sizes are broadcast.
    assert counts[1] == {"all_reduce": 2, "broadcast": 2}
    assert counts[2] == {"all_reduce": 2}
    assert region.reading.total.bytes == P
    assert region.reading.total.wire_bytes == P  # 2(N-1)/N of P, at N = 2
    assert region.of("backward") == {"all_reduce": 2}


def test_ddp_in_one_bucket(process_group, collectives):
    model = DistributedDataParallel(Net16())
    region = steady(collectives, model, AdamW(model.parameters()), net16_batch())
    assert region.counts == {"all_reduce": 1}
    assert region.reading["all_reduce"].bytes == 8_192


def test_zero1_without_ddp_never_averages_gradients(process_group, collectives):
    model = m8()
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    region = steady(collectives, model, optimizer, m8_batch())
    assert region.counts == {"broadcast": 16}
    assert region.of("optimizer") == {"broadcast": 16}
    assert region.reading.total.bytes == P


def test_zero1_moves_twice_the_parameters(process_group, collectives):
    model = DistributedDataParallel(m8())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), AdamW)
    region = steady(collectives, model, optimizer, m8_batch())
    assert region.counts == {"all_reduce": 2, "broadcast": 16}
    assert region.reading.total.bytes == 2 * P


@pytest.mark.parametrize(
    ("strategy", "gathers"),
    [
        pytest.param(ShardingStrategy.SHARD_GRAD_OP, 8, id="zero2"),
        pytest.param(ShardingStrategy.FULL_SHARD, 16, id="zero3"),
    ],
)
@pytest.mark.world_size(2, 4)
def test_fsdp1(strategy, gathers, process_group, collectives):
    model = FullyShardedDataParallel(
        m8(),
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id="cpu",
    )
    region = steady(collectives, model, AdamW(model.parameters()), m8_batch())
    assert region.counts == {"all_gather": gathers, "reduce_scatter": 8}
    # 2P for ZeRO-2, 3P for ZeRO-3, less a ring's 1/N.
    size = process_group.size()
    assert region.reading.total.bytes == (gathers + 8) * LAYER
    assert region.reading.total.wire_bytes == (gathers // 8 + 1) * P * (size - 1) // size
    assert region.reading["all_gather"].largest == LAYER


@pytest.mark.parametrize(("reshard", "gathers"), [(False, 8), (True, 16)])
@pytest.mark.world_size(2, 4)
def test_fsdp2(reshard, gathers, device_mesh, collectives):
    model = m8()
    for layer in model:
        fully_shard(layer, mesh=device_mesh, reshard_after_forward=reshard)
    region = steady(collectives, model, AdamW(model.parameters()), m8_batch())
    assert region.of("forward") == {"all_gather": 8}
    assert region.counts == {"all_gather": gathers, "reduce_scatter": 8}
    size = device_mesh.size()
    assert region.reading.total.wire_bytes == (gathers // 8 + 1) * P * (size - 1) // size
    assert region.reading.group("world").total == region.reading.total


# Public reports


def test_checkpointing_gathers_no_more(device_mesh, collectives):
    """pytorch #105635: once an extra all_gather for each block, by the order of wrapping."""
    for place in ("none", "function"):
        model = Net16()
        blocks = list(model.blocks)
        for block in blocks:
            fully_shard(block, mesh=device_mesh)
        fully_shard(model, mesh=device_mesh)
        if place == "function":
            for block in blocks:
                forward = block.forward
                block.forward = lambda *args, forward=forward: checkpoint(
                    forward, *args, use_reentrant=False
                )
        region = steady(collectives, model, SGD(model.parameters()), net16_batch())
        assert region.of("forward") == {"all_gather": 4}, place
        assert region.of("backward") == {"all_gather": 3, "reduce_scatter": 4}, place


def test_accumulation_gathers_once_where_told_so(device_mesh, collectives):
    """lingbot-vla PR 50: three micro-batches cost 4 + 4 calls, by default 3 x (7 + 4)."""
    model = Net16()
    for block in model.blocks:
        fully_shard(block, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)

    def accumulate(*, once: bool) -> list[dict[str, int]]:
        counts = []
        for micro in range(3):
            last = micro == 2
            if once:
                model.set_requires_gradient_sync(last)
                model.set_reshard_after_backward(last)
                model.set_reshard_after_forward(False)
                model.set_is_last_backward(last)
            with collectives() as region:
                model(net16_batch()).sum().backward()
            counts.append(region.counts)
        return counts

    accumulate(once=False)
    assert accumulate(once=False) == [{"all_gather": 7, "reduce_scatter": 4}] * 3
    assert accumulate(once=True) == [{"all_gather": 4}, {}, {"reduce_scatter": 4}]


@pytest.mark.parametrize("own_units", [False, True])
def test_two_tables_in_one_unit_double_the_largest_message(own_units, device_mesh, collectives):
    """NeMo Automodel PR 3708, scaled: two Embedding(1024, 16)."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Embedding(1024, 16)
            self.b = nn.Embedding(1024, 16)

        def forward(self, tokens):
            return self.a(tokens) + self.b(tokens)

    model = Tables()
    if own_units:
        fully_shard(model.a, mesh=device_mesh)
        fully_shard(model.b, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    region = steady(collectives, model, SGD(model.parameters()), torch.arange(4))
    reduced = region.reading["reduce_scatter"]
    assert reduced.largest == (65_536 if own_units else 131_072)
    assert reduced.count == (2 if own_units else 1)
    assert reduced.bytes == 131_072


@pytest.mark.parametrize(("broadcast_buffers", "broadcasts"), [(True, 2), (False, 0)])
def test_ddp_broadcasts_buffers_each_forward(
    broadcast_buffers, broadcasts, process_group, collectives
):
    """ultralytics #24410: one for each dtype of buffers."""
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    model = DistributedDataParallel(model, broadcast_buffers=broadcast_buffers)
    region = steady(collectives, model, SGD(model.parameters()), torch.randn(4, 4))
    assert region.of("forward") == ({"broadcast": broadcasts} if broadcasts else {})
    assert region.of("backward") == {"all_reduce": 1}


@pytest.mark.parametrize(
    ("around", "all_reduces"), [("both", 0), ("forward", 0), ("backward", 1), ("nothing", 1)]
)
def test_no_sync_must_hold_the_forward(around, all_reduces, process_group, collectives):
    """accelerate PR 1726."""
    model = DistributedDataParallel(Net16())
    train(model, SGD(model.parameters()), net16_batch(), steps=2)
    with collectives() as region:
        with model.no_sync() if around in ("both", "forward") else nullcontext():
            loss = model(net16_batch()).sum()
            if around == "both":
                loss.backward()
        if around != "both":
            with model.no_sync() if around == "backward" else nullcontext():
                loss.backward()
    assert region.reading["all_reduce"].count == all_reduces


def test_a_local_matmul_of_dtensors_says_what_it_costs(device_mesh, collectives):
    """pytorch #167106 asks for none where one operand is whole; and clipping needs one."""
    sharded = distribute_tensor(torch.ones(4, 4), device_mesh, [Shard(0)])
    whole = distribute_tensor(torch.ones(4, 4), device_mesh, [Replicate()])
    with collectives() as region:
        product = sharded @ whole
    assert region.counts == {}
    assert isinstance(product, DTensor)
    with collectives() as region:
        product.full_tensor()
    assert region.counts == {"all_gather": 1}

    model = Net16()
    fully_shard(model, mesh=device_mesh)
    model(net16_batch()).sum().backward()
    with collectives() as region:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm.full_tensor()
    # A mode that does not stand aside for DTensors counts none.
    assert region.counts == {"all_reduce": 1}


@pytest.mark.world_size(4)
def test_an_axis_is_one_of_its_mesh(process_group, world, collectives):
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = Net16()
    fully_shard(model, mesh=mesh["dp"])
    region = steady(collectives, model, SGD(model.parameters()), net16_batch())
    with collectives() as beside:
        dist.all_reduce(torch.ones(4), group=mesh.get_group("tp"))
    assert region.reading.group("dp").total == region.reading.total
    assert region.reading.group("tp").total.count == 0
    assert beside.reading.group("tp").total.count == 1
    assert region.reading.calls[0].ranks == ((0, 2) if world.rank in (0, 2) else (1, 3))


# Pipelines


@pytest.mark.parametrize("schedule", [ScheduleGPipe, Schedule1F1B])
@pytest.mark.parametrize("micro_batches", [2, 4])
def test_a_pipeline_sends_each_micro_batch_and_its_gradient(
    schedule, micro_batches, process_group, world, collectives
):
    stage = PipelineStage(
        nn.Sequential(nn.Linear(32, 32), nn.ReLU()), world.rank, 2, torch.device("cpu")
    )
    schedule = schedule(stage, micro_batches, loss_fn=nn.functional.mse_loss)
    batch = torch.ones(8, 32)

    def step() -> None:
        schedule.step(batch) if world.rank == 0 else schedule.step(target=batch)

    step()
    step()
    with collectives() as region:
        step()
    assert region.counts == {"send": micro_batches, "recv": micro_batches}
    assert region.reading["send"].bytes == 8 * 32 * 4
    assert {call.peer for call in region.reading.calls} == {1 - world.rank}


# Other counters


def test_comm_debug_mode_agrees_where_it_counts(process_group, collectives):
    x = torch.ones(4)
    mode = CommDebugMode()
    with collectives() as region, mode:
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
        dist.all_gather([torch.empty(4), torch.empty(4)], x)
        dist.all_gather_into_tensor(torch.empty(8), x)
        dist.reduce_scatter_tensor(torch.empty(2), x)
        dist.broadcast(x, 0)
        dist.all_to_all_single(torch.empty(4), x)
        dist.all_gather_object([None, None], 1)
    assert mode.get_total_counts() == region.reading.total.count == 9


def test_it_counts_what_comm_debug_mode_does_not(process_group, world, collectives):
    mode = CommDebugMode()
    with collectives() as region, mode:
        dist.barrier()
        dist.monitored_barrier()
        if world.rank == 0:
            dist.send(torch.ones(4), 1)
        else:
            dist.recv(torch.ones(4), 0)
        peer = 1 - world.rank
        both = [
            dist.P2POp(dist.isend, torch.ones(4), peer),
            dist.P2POp(dist.irecv, torch.ones(4), peer),
        ]
        for work in dist.batch_isend_irecv(both):
            work.wait()
    assert mode.get_total_counts() == 0
    ours = {"send": 2, "recv": 1} if world.rank == 0 else {"recv": 2, "send": 1}
    assert region.counts == {"barrier": 2, **ours}


def test_gloos_events_in_the_profiler_agree(process_group, collectives):
    x = torch.ones(4)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile, collectives() as region:
        dist.all_reduce(x)
        dist.broadcast(x, 0)
        dist.all_gather_into_tensor(torch.empty(8), x)
        dist.all_to_all_single(torch.empty(4), x)
    events = [event.name for event in profile.events() if event.name.startswith("gloo:")]
    assert len(events) == region.reading.total.count, events


def test_compiled_fsdp2_is_heard(device_mesh, collectives):
    model = Net16()
    for block in model.blocks:
        fully_shard(block, mesh=device_mesh)
    fully_shard(model, mesh=device_mesh)
    eager = steady(collectives, model, SGD(model.parameters()), net16_batch()).counts
    model.compile(backend="aot_eager")
    compiled = steady(collectives, model, SGD(model.parameters()), net16_batch()).counts
    assert compiled == eager == {"all_gather": 7, "reduce_scatter": 4}


def test_a_mesh_from_before_we_followed(device_mesh, request):
    """The fixture is asked for late, when the mesh is there: its axis must still name the group."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("late",))
    shardcheck = request.getfixturevalue("shardcheck")
    with shardcheck.measure() as reading:
        dist.all_reduce(torch.ones(1), group=mesh.get_group("late"))
    assert reading.collectives.group("late")["all_reduce"].count == 1
