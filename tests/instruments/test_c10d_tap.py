"""Every call that reaches a process group is seen, whoever made it."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from pytest_shardcheck.instruments import c10d_tap


class Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.returns = 0
        self.failures = 0

    def issued(self, call: c10d_tap.Tapped) -> int:
        descriptor = call.descriptor
        self.calls.append((descriptor.operation, descriptor.stream.label))
        return len(self.calls)

    def returned(self, token: int, result: object) -> None:
        assert token <= len(self.calls)
        self.returns += 1

    def failed(self, token: int) -> None:
        self.failures += 1

    def names(self) -> list[str]:
        names = [name for name, _ in self.calls]
        self.calls.clear()
        return names


@pytest.fixture
def recorder():
    c10d_tap.install()
    recorder = Recorder()
    c10d_tap.listen(recorder)
    yield recorder
    c10d_tap.stop_listening(recorder)


@pytest.fixture
def group(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.ones(2) for _ in range(count)]


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (dist.all_reduce, ["all_reduce"]),
        (lambda x: dist.all_reduce(x, async_op=True).wait(), ["all_reduce"]),
        (lambda x: dist.all_gather([torch.empty(2)], x), ["all_gather"]),
        (lambda x: dist.all_gather_into_tensor(torch.empty(2), x), ["all_gather"]),
        (lambda x: dist.reduce_scatter(torch.empty(2), [x]), ["reduce_scatter"]),
        (lambda x: dist.reduce_scatter_tensor(torch.empty(2), x), ["reduce_scatter"]),
        (lambda x: dist.broadcast(x, 0), ["broadcast"]),
        (lambda x: dist.reduce(x, 0), ["reduce"]),
        (lambda x: dist.gather(x, [torch.empty(2)]), ["gather"]),
        (lambda x: dist.scatter(x, [torch.ones(2)]), ["scatter"]),
        (lambda x: dist.all_to_all_single(torch.empty(2), x), ["all_to_all"]),
        (lambda x: dist.barrier(), ["barrier"]),
        (lambda x: dist.all_gather_object([None], 1), ["all_gather", "all_gather"]),
        (lambda x: functional.all_reduce(x, "sum", dist.group.WORLD).sum(), ["all_reduce"]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # 2.13 renames them
def test_each_api_is_seen_as_what_it_is(group, recorder, call, seen):
    call(torch.ones(2))
    assert recorder.names() == seen
    assert recorder.returns == len(seen)


def test_inference_mode_hides_nothing(group, recorder):
    with torch.inference_mode():
        dist.all_reduce(torch.ones(2))
    assert recorder.names() == ["all_reduce"]


def test_ddps_reducer_and_fsdps_units_are_seen(group, recorder):
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    recorder.names()
    model(torch.ones(1, 2)).sum().backward()
    assert "all_reduce" in recorder.names()

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for layer in model:
        fully_shard(layer)
    recorder.names()
    model(torch.ones(1, 2)).sum().backward()
    # A world of one has nothing to exchange, and torch knows it.
    assert recorder.names() == []


def test_a_group_is_called_by_its_description(group, recorder):
    other = dist.new_group([0], group_desc="dp")
    dist.all_reduce(torch.ones(2))
    dist.all_reduce(torch.ones(2), group=other)
    assert recorder.calls == [("all_reduce", "default_pg"), ("all_reduce", "dp")]


def test_nobody_listens_nobody_pays(group, recorder):
    c10d_tap.stop_listening(recorder)
    value = torch.ones(2)
    dist.all_reduce(value)
    assert value.tolist() == [1, 1]
    assert recorder.calls == []


def test_several_listen_each_is_told(group, recorder):
    other = Recorder()
    c10d_tap.listen(other)
    dist.all_reduce(torch.ones(2))
    c10d_tap.stop_listening(other)
    dist.barrier()
    assert other.names() == ["all_reduce"]
    assert recorder.names() == ["all_reduce", "barrier"]


def test_a_call_that_is_refused_is_told_as_that(group, recorder):
    with pytest.raises(RuntimeError, match="invalid root rank"):
        group.broadcast(torch.ones(2), 7)
    assert (recorder.returns, recorder.failures) == (0, 1)


def test_a_forked_child_is_silent(group, recorder):
    pid = os.fork()
    if pid == 0:
        os._exit(len(c10d_tap._listeners))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert c10d_tap._listeners == (recorder,)
