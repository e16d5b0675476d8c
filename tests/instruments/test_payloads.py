"""Payload and wire bytes of every operator, counted by hand, as rank 1 of 4 on torch's fake group.

x is 8 floats, 32 B.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_shardcheck.instruments import payloads
from pytest_shardcheck.instruments.collectives import Collectives
from pytest_shardcheck.instruments.surroundings import Surroundings

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # 2.13 renames


@pytest.fixture
def collectives():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    collectives = Collectives(Surroundings())
    collectives.start()
    yield collectives
    collectives.stop()
    dist.destroy_process_group()


def x() -> torch.Tensor:
    return torch.ones(8)


def parts(*sizes: int) -> list[torch.Tensor]:
    return [torch.ones(size) for size in sizes]


def several(call) -> None:
    with _coalescing_manager():
        call()
        call()


EVEN = (8, 8, 8, 8)
UNEVEN = (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("call", "operation", "payload", "wire"),
    [
        (lambda: dist.all_reduce(x()), "all_reduce", 32, 48),
        (lambda: dist.all_reduce(torch.ones(5)), "all_reduce", 20, 30),
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.int8)), "all_reduce", 3, 5),  # 4.5
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.complex64)), "all_reduce", 16, 24),
        (lambda: dist.all_reduce(torch.ones(1).expand(8)), "all_reduce", 32, 48),
        (lambda: several(lambda: dist.all_reduce(x())), "all_reduce", 64, 96),
        (lambda: dist.all_gather(parts(*EVEN), x()), "all_gather", 128, 96),
        (lambda: dist.all_gather(parts(*UNEVEN), torch.ones(1)), "all_gather", 40, 30),
        (lambda: dist.all_gather_into_tensor(torch.ones(32), x()), "all_gather", 128, 96),
        (
            lambda: several(lambda: dist.all_gather_into_tensor(torch.ones(32), x())),
            "all_gather",
            256,
            192,
        ),
        (lambda: dist.reduce_scatter(x(), parts(*EVEN)), "reduce_scatter", 128, 96),
        (lambda: dist.reduce_scatter_tensor(torch.ones(2), x()), "reduce_scatter", 32, 24),
        (lambda: dist.broadcast(x(), 2), "broadcast", 32, 32),
        (lambda: dist.reduce(x(), 2), "reduce", 32, 32),
        (lambda: dist.gather(x(), parts(*EVEN), dst=1), "gather", 128, 96),
        (lambda: dist.gather(x(), dst=0), "gather", 128, 96),
        (lambda: dist.scatter(x(), parts(*EVEN), src=1), "scatter", 128, 96),
        (lambda: dist.scatter(x(), src=0), "scatter", 128, 96),
        (lambda: dist.all_to_all_single(x(), x()), "all_to_all", 32, 24),
        # Of 1, 2, 3 and 4 floats the 2 are this rank's own.
        (
            lambda: dist.all_to_all_single(torch.ones(8), torch.ones(10), [2] * 4, [*UNEVEN]),
            "all_to_all",
            40,
            32,
        ),
        (
            lambda: dist.all_to_all_single(torch.ones(8, 3), torch.ones(10, 3), [2] * 4, [*UNEVEN]),
            "all_to_all",
            120,
            96,
        ),
        (lambda: dist.all_to_all(parts(*UNEVEN), parts(*UNEVEN)), "all_to_all", 40, 32),
        (lambda: dist.send(x(), 2), "send", 32, 32),
        (lambda: dist.recv(x(), 0), "recv", 32, 32),
        (lambda: dist.irecv(x()), "recv", 32, 32),
        (dist.barrier, "barrier", 0, 0),
        (lambda: functional.all_reduce(x(), "sum", dist.group.WORLD).sum(), "all_reduce", 32, 48),
        (
            lambda: functional.all_gather_tensor(x(), 0, dist.group.WORLD).sum(),
            "all_gather",
            128,
            96,
        ),
        (
            lambda: functional.reduce_scatter_tensor(x(), "sum", 0, dist.group.WORLD).sum(),
            "reduce_scatter",
            32,
            24,
        ),
        (
            lambda: functional.all_to_all_single(x(), [2] * 4, [2] * 4, dist.group.WORLD).sum(),
            "all_to_all",
            32,
            24,
        ),
    ],
)
def test_payload_and_wire_bytes(collectives, call, operation, payload, wire):
    window = collectives.open()
    call()
    (made,) = collectives.close(window).calls
    assert (made.operation, made.bytes, made.wire_bytes) == (operation, payload, wire)


def test_a_sparse_tensor_counts_what_is_there(collectives):
    window = collectives.open()
    dist.all_reduce(torch.eye(100).to_sparse())
    dist.all_reduce(torch.eye(3).to_sparse())
    large, small = collectives.close(window).calls
    assert large.bytes == 100 * (2 * 8 + 4)  # indices and values
    assert small.bytes == 3 * (2 * 8 + 4)
    assert small.shapes == ((3, 3),)


def test_shapes_and_dtype_are_those_of_the_payload(collectives):
    window = collectives.open()
    dist.all_gather_into_tensor(torch.ones(8, 3), torch.ones(2, 3))
    dist.gather(torch.ones(2, 3, dtype=torch.bfloat16), dst=0)
    dist.broadcast(torch.ones((), dtype=torch.int64), 0)
    gathered, parts_, scalar = collectives.close(window).calls
    assert (gathered.shapes, gathered.dtype) == (((8, 3),), "float32")
    assert (parts_.shapes, parts_.dtype) == (((2, 3),) * 4, "bfloat16")
    assert (scalar.shapes, scalar.dtype) == (((),), "int64")


def test_peers_are_global_ranks(collectives):
    odd = dist.new_group([1, 3])
    window = collectives.open()
    dist.send(x(), 3, group=odd)
    dist.recv(x(), 3, group=odd)
    dist.irecv(x())
    dist.broadcast(x(), group_src=1, group=odd)
    dist.all_reduce(x(), group=odd)
    calls = collectives.close(window).calls
    assert [call.peer for call in calls] == [3, 3, None, 3, None]
    assert [call.ranks for call in calls] == [(1, 3)] * 2 + [(0, 1, 2, 3)] + [(1, 3)] * 2
    assert calls[-1].wire_bytes == 32  # 2(n-1)/n of a group of two


def test_a_group_of_one_sends_nothing(collectives):
    alone = dist.new_group([1])
    window = collectives.open()
    dist.all_reduce(x(), group=alone)
    dist.broadcast(x(), 1, group=alone)
    dist.all_gather_into_tensor(x(), x(), group=alone)
    reading = collectives.close(window)
    assert (reading.total.count, reading.total.bytes, reading.total.wire_bytes) == (3, 96, 0)


def test_equal_calls_share_their_descriptor_and_unequal_ones_do_not(collectives):
    for shape in ((8,), (8,), (2, 4)):
        dist.all_reduce(torch.ones(shape))
    dist.all_reduce(torch.ones(8, dtype=torch.float64))
    first, second, third, fourth = (record.descriptor for record in collectives._records)
    assert first is second
    assert len({id(first), id(third), id(fourth)}) == 3


def test_zeros_volumes_come_out_exactly(collectives):
    """2P for DDP and ZeRO-1 and 2, 3P for ZeRO-3, less the ring's 1/N: sections 7.1 and 7.2 of
    "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (arXiv:1910.02054)."""
    p = 1024 * 4
    whole, shard = torch.ones(1024), torch.ones(256)

    window = collectives.open()
    dist.all_reduce(whole)
    assert collectives.close(window).total.wire_bytes == 2 * p * 3 // 4

    window = collectives.open()
    dist.reduce_scatter_tensor(shard, whole)
    dist.all_gather_into_tensor(whole, shard)
    assert collectives.close(window).total.wire_bytes == 2 * p * 3 // 4

    window = collectives.open()
    dist.all_gather_into_tensor(whole, shard)  # forward
    dist.all_gather_into_tensor(whole, shard)  # backward
    dist.reduce_scatter_tensor(shard, whole)
    assert collectives.close(window).total.wire_bytes == 3 * p * 3 // 4


def test_every_operation_has_its_operators():
    from pytest_shardcheck.vocabulary.collectives import OPERATIONS

    assert set(payloads.CANONICAL.values()) == set(OPERATIONS)
