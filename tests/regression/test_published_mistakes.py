"""Mistakes that people published, made again in an inner session: what passes, what a failure says.

Each right number is worked out beside its test. A37 is DeepSpeed's own; here is what of it torch
alone can show.
"""

from __future__ import annotations

import pytest

INNER = """
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.world_size(2)


# A37, DeepSpeed #5758 (its configuration says reduce_scatter, its trace all_reduce). Of S = 400 B a
# ring of two sends 2 (N - 1) / N S = S to sum everywhere, half of it to leave each rank its part.
@pytest.mark.parametrize("kind", ["reduce_scatter", "all_reduce"])
@pytest.mark.collectives(reduce_scatter=1)
@pytest.mark.max_collectives(wire_bytes=200)
def test_gradients_are_scattered(kind, process_group, shardcheck):
    gradient = torch.ones(100)
    with shardcheck.measure():
        if kind == "reduce_scatter":
            dist.reduce_scatter_tensor(torch.empty(50), gradient)
        else:
            dist.all_reduce(gradient)  # instead


# A16, pytorch PR 175406: a unit in a checkpointed one that reshards once recomputed. One unit and
# the root: two gathers in forward, one in backward.
@pytest.mark.parametrize("affected", [False, True])
@pytest.mark.collectives(all_gather=2, phase="forward")
@pytest.mark.collectives(all_gather=1, reduce_scatter=2, phase="backward")
def test_recomputed_units(affected, device_mesh, shardcheck):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    attention = fully_shard(model[0], mesh=device_mesh)
    if affected:
        attention.register_forward_hook(lambda module, *_: module.reshard())
    fully_shard(model, mesh=device_mesh)
    hidden = torch.ones(1, 4, requires_grad=True)

    with shardcheck.measure():
        checkpoint(model, hidden, use_reentrant=False).sum().backward()


# A47, pytorch PR 119881: 400 B a call stay until somebody waits for them.
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.max_memory(growth=0)
@pytest.mark.collectives(all_reduce=3)
def test_functional_collectives(waits, process_group, shardcheck):
    with shardcheck.measure():
        for _ in range(3):
            total = funcol.all_reduce(torch.ones(100), "sum", process_group)
            if waits:
                total.wait()
            del total


# A46, pytorch #40400: a group for each step. It is no tensor, so growth can't tell; torch's own
# table can (get_pg_count counts those that were ever made).
def groups():
    return len(dist.distributed_c10d._world.pg_map)


@pytest.mark.parametrize("destroys", [True, False])
@pytest.mark.max_memory(growth=0)
def test_a_group_for_each_step(destroys, process_group, shardcheck):
    with shardcheck.measure() as reading:
        for _ in range(2):
            group = dist.new_group([0, 1])
            dist.all_reduce(torch.ones(4), group=group)
            if destroys:
                dist.destroy_process_group(group)
    assert len({call.group for call in reading.collectives.calls}) == 2
    assert groups() == 1, "groups are left behind"


def test_the_next_test_starts_without_them(process_group):
    assert groups() == 1
"""

SAYS = {
    "test_gradients_are_scattered[world2-all_reduce]": (
        "collectives(all_reduce): 0 calls were expected",
        "1 x all_reduce of float32 [100] (400 B) in group 'world', forward at test_inner.py:",
        "collectives(reduce_scatter): 1 call was expected",
        "ranks 0-1: 0 calls, 1 fewer",
        "max_collectives(wire_bytes): the ceiling of 200 B was crossed",
    ),
    "test_recomputed_units[world2-True]": (
        "collectives(all_gather, phase='backward'): 1 call was expected",
        "ranks 0-1: 2 calls, 1 more",
    ),
    "test_functional_collectives[world2-False]": (
        "max_memory(growth): the ceiling of 0 B was crossed",
        "3 x 400 B float32 [100] communication buffers, at test_inner.py:",
    ),
    # The world's own and two more.
    "test_a_group_for_each_step[world2-False]": ("groups are left behind", "3 == 1"),
}
PASSES = [
    "test_gradients_are_scattered[world2-reduce_scatter]",
    "test_recomputed_units[world2-False]",
    "test_functional_collectives[world2-True]",
    "test_a_group_for_each_step[world2-True]",
    "test_the_next_test_starts_without_them[world2]",
]


@pytest.fixture(scope="module")
def session(run_session):
    return run_session({"test_inner.py": INNER}, "-rA")


@pytest.mark.parametrize("name", PASSES)
def test_right(session, name):
    assert session.results.get(name) == ["PASSED"], session.out


@pytest.mark.parametrize("name", SAYS)
def test_wrong(session, name):
    failure = session.failure(name)
    for part in SAYS[name]:
        assert part in failure
