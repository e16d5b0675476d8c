"""What a region of one rank reads: which calls, of which group, in which phase, from where."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.backends.registry import lookup_backend
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_shardcheck.instruments import c10d_tap
from pytest_shardcheck.instruments.collectives import Collectives
from pytest_shardcheck.vocabulary.collectives import CollectivesReading
from pytest_shardcheck.vocabulary.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # 2.13 renames


@pytest.fixture
def collectives(surroundings):
    collectives = Collectives(surroundings)
    collectives.start()
    yield collectives
    collectives.stop()


@pytest.fixture
def four(collectives):
    """Rank 1 of 4, on torch's fake group."""
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def alone(collectives):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def x() -> torch.Tensor:
    return torch.ones(8)


# Regions


def test_regions_nest_and_hold_their_own_calls(collectives, four):
    dist.all_reduce(x())
    outer = collectives.open()
    dist.broadcast(x(), 0)
    inner = collectives.open()
    dist.barrier()
    inner_reading = collectives.close(inner)
    dist.all_reduce(x())
    outer_reading = collectives.close(outer)
    dist.all_reduce(x())
    assert list(inner_reading) == ["barrier"]
    assert [call.operation for call in outer_reading.calls] == [
        "broadcast",
        "barrier",
        "all_reduce",
    ]


def test_a_region_without_a_group_reads_nothing(collectives):
    reading = collectives.close(collectives.open())
    assert reading == CollectivesReading()


def test_a_reading_is_plain_data(collectives, four):
    window = collectives.open()
    dist.all_reduce(x())
    reading = collectives.close(window)
    assert CollectivesReading.from_json(reading.to_json()) == reading


def test_nothing_is_recorded_after_the_end(surroundings, alone):
    collectives = Collectives(surroundings)
    collectives.start()
    window = collectives.open()
    dist.all_reduce(x())
    collectives.stop()
    dist.all_reduce(x())
    assert collectives.close(window).total.count == 1


def test_what_an_ended_measurement_replaced_is_as_it_was(surroundings):
    before = DeviceMesh.__init__, dist.Work.wait, c10d_tap._listeners
    collectives = Collectives(surroundings)
    collectives.start()
    assert DeviceMesh.__init__ is not before[0]
    collectives.stop()
    assert (DeviceMesh.__init__, dist.Work.wait, c10d_tap._listeners) == before


# What a call is


@pytest.mark.parametrize(
    ("call", "operations"),
    [
        (lambda: dist.all_gather_object([None] * 4, "it"), ["all_gather"] * 2),
        (dist.barrier, ["barrier"]),
        (lambda: dist.new_group([0, 1]), []),
        (lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), []),
    ],
)
def test_what_counts_as_a_call(collectives, four, monkeypatch, call, operations):
    # A fake group returns no pickles.
    monkeypatch.setattr(dist.distributed_c10d, "_tensor_to_object", lambda *_: None)
    window = collectives.open()
    call()
    assert [made.operation for made in collectives.close(window).calls] == operations


def test_a_coalesced_call_is_one_and_waiting_is_none(collectives, alone):
    window = collectives.open()
    out = functional.all_reduce_coalesced([x(), x()], "sum", dist.group.WORLD)
    [functional.wait_tensor(tensor) for tensor in out]
    reading = collectives.close(window)
    assert (reading["all_reduce"].count, reading["all_reduce"].bytes) == (1, 64)
    assert list(reading) == ["all_reduce"]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_no_mode_hides_a_call(collectives, alone, context):
    window = collectives.open()
    with context():
        dist.all_reduce(x())
        functional.all_reduce(x(), "sum", dist.group.WORLD).sum()
    assert collectives.close(window).total.count == 2


def test_threads_are_heard(collectives, alone):
    window = collectives.open()
    thread = threading.Thread(target=lambda: dist.all_reduce(x()))
    thread.start()
    thread.join()
    (call,) = collectives.close(window).calls
    assert "test_collectives.py" in call.line


def test_the_backward_of_a_functional_collective_is_heard(collectives, alone):
    source = x().requires_grad_()
    window = collectives.open()
    gathered = functional.all_gather_tensor_autograd(source, 0, dist.group.WORLD)
    functional.all_to_all_single_autograd(gathered, [8], [8], dist.group.WORLD).sum().backward()
    calls = collectives.close(window).calls
    assert [(call.operation, call.phase) for call in calls] == [
        ("all_gather", "forward"),
        ("all_to_all", "forward"),
        ("all_to_all", "backward"),
        ("reduce_scatter", "backward"),
    ]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_stays_compiled_and_is_heard(collectives, alone, backend):
    graphs = []

    def counting(graph, inputs):
        graphs.append(graph)
        return lookup_backend(backend)(graph, inputs)

    @torch.compile(backend=counting, fullgraph=True)
    def compiled(value):
        value = functional.all_reduce(value, "sum", dist.group.WORLD)
        dist.all_reduce(value)
        return value

    for _ in range(2):  # the first call traces, which must not count
        window = collectives.open()
        assert compiled(x()).tolist() == [1] * 8
        reading = collectives.close(window)
        assert (reading["all_reduce"].count, reading["all_reduce"].bytes) == (2, 64)
    assert len(graphs) == 1


def test_an_operator_that_we_do_not_know_is_named(collectives, four, monkeypatch):
    monkeypatch.delitem(c10d_tap.CANONICAL, "broadcast_")
    window = collectives.open()
    dist.all_reduce(x())
    dist.broadcast(x(), 0)
    reading = collectives.close(window)
    assert reading.unknown == ("broadcast_",)
    with pytest.raises(UsageError, match="broadcast_"):
        reading["all_reduce"]
    assert collectives.close(collectives.open()).unknown == ()


def test_symmetric_memory_is_named(collectives, four):
    window = collectives.open()
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ops.symm_mem.one_shot_all_reduce(x(), "sum", dist.group.WORLD.group_name)
    assert collectives.close(window).unknown == ("symm_mem::one_shot_all_reduce",)


# Groups


def names(collectives: Collectives, group: dist.ProcessGroup) -> tuple[str, ...]:
    window = collectives.open()
    dist.all_reduce(x(), group=group)
    (call,) = collectives.close(window).calls
    return call.axes


def test_a_group_answers_to_its_axis_and_its_description(collectives, four):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert names(collectives, mesh["tp"].get_group()) == ("tp", "mesh_tp")
    assert names(collectives, mesh.get_group("dp")) == ("dp", "mesh_dp")
    assert names(collectives, dist.new_group([0, 1], group_desc="pair")) == ("pair",)
    assert names(collectives, dist.new_group([0, 1])) == ()


def test_the_default_group_is_the_world_and_an_axis_that_spans_it(collectives, four):
    assert names(collectives, dist.group.WORLD) == ("world", "default_pg")
    init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    assert names(collectives, dist.group.WORLD) == ("world", "dp", "default_pg")


def test_flattened_axes_and_meshes_of_groups_count(collectives, four):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    mesh["dp", "tp"]._flatten("both")
    assert names(collectives, dist.group.WORLD) == ("world", "both", "default_pg")
    other = DeviceMesh.from_group(mesh.get_group("tp"), "cpu", mesh_dim_names=("ep",))
    assert names(collectives, other.get_group()) == ("tp", "ep", "mesh_tp")


def test_an_axis_that_spans_the_world_means_the_default_group_even_beside_its_own(
    collectives, four
):
    own = dist.new_group([0, 1, 2, 3], group_desc="mesh_default")
    _mesh = DeviceMesh.from_group(own, "cpu", mesh_dim_names=("dp",))
    window = collectives.open()
    dist.all_reduce(x())
    dist.all_reduce(x(), group=own)
    reading = collectives.close(window)
    assert reading.group("dp").total.count == 2
    assert reading.group("world").total.count == 2


def test_a_mesh_made_before_the_measurement_is_known(surroundings, four):
    # torch keeps other tests' meshes in its caches, and counts groups from 0 again after each:
    # the names of these are to be our mesh's alone.
    for _ in range(50):
        dist.new_group()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    collectives = Collectives(surroundings)
    collectives.start()
    assert names(collectives, mesh.get_group("tp")) == ("tp", "mesh_tp")
    collectives.stop()


def test_names_are_those_of_all_groups_also_without_a_call(collectives, four):
    init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    reading = collectives.close(collectives.open())
    expected = {"world", "default_pg", "0", "dp", "mesh_dp", "tp", "mesh_tp"}
    assert expected <= set(reading.groups)
    assert reading.groups[0] == "world"
    assert reading.group("tp").total.count == 0
    with pytest.raises(UsageError, match="no process group 'pp'; there are world, "):
        reading.group("pp")


def test_a_destroyed_group_is_remembered_by_its_calls(collectives, four):
    window = collectives.open()
    dist.all_reduce(x())
    dist.destroy_process_group()
    (call,) = collectives.close(window).calls
    assert (call.axes, call.ranks) == (("world", "default_pg"), (0, 1, 2, 3))


def test_a_new_group_with_a_destroyed_ones_name_is_another(collectives, four):
    window = collectives.open()
    dist.all_reduce(x())
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    dist.all_reduce(x())
    first, second = collectives.close(window).calls
    assert (first.group, first.ranks) == (second.group, (0, 1, 2, 3))
    assert second.ranks == (0, 1)


# Where


def test_phase_module_and_line_are_those_of_the_call(collectives, surroundings, alone):
    class Layer(torch.nn.Module):
        def forward(self, value):
            return functional.all_gather_tensor_autograd(value, 0, dist.group.WORLD)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Layer())
    window = collectives.open()
    model(torch.ones(3, 2)).sum().backward()
    surroundings.learn([model])  # late
    forward, backward = collectives.close(window).calls
    assert (forward.phase, forward.module) == ("forward", "1")
    assert (backward.phase, backward.module) == ("backward", "1")
    assert "test_collectives.py:" in forward.line
    assert "test_collectives.py:" in backward.line


def test_the_reducers_calls_are_of_backward(collectives, alone):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    window = collectives.open()
    model(torch.ones(1, 2)).sum().backward()
    (call,) = collectives.close(window).calls
    assert (call.operation, call.phase, call.bytes) == ("all_reduce", "backward", 24)
    assert "test_collectives.py:" in call.line
