"""The private torch interfaces of the collectives' instrument mean what we take them for.

A new torch that fails here changed one of them: a count could be wrong without it being seen.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_shardcheck.instruments import _torch_private as private
from pytest_shardcheck.instruments import c10d_tap, payloads

# The functional operators that reach a group by calling the group, and so a c10d operator.
FUNCTIONAL = {
    "_wrap_tensor_autograd",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
    "all_gather_into_tensor_out",
    "all_reduce",
    "all_reduce_",
    "all_reduce_coalesced",
    "all_reduce_coalesced_",
    "all_to_all_single",
    "batch_p2p_ops",
    "broadcast",
    "broadcast_",
    "irecv",
    "isend",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_tensor_out",
    "wait_tensor",
}


@pytest.fixture
def four():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def test_every_c10d_operator_is_known_or_moves_nothing():
    known = set(payloads.CANONICAL) | c10d_tap.NOT_COLLECTIVES["c10d"]
    assert set(private.schemas_of("c10d")) == known


def test_functional_operators_are_those_that_call_c10d_ones():
    assert set(private.schemas_of("_c10d_functional")) == FUNCTIONAL
    assert set(private.schemas_of("_c10d_functional_autograd")) <= FUNCTIONAL
    assert set(private.schemas_of("_dtensor")) <= {"mesh_get_process_group", "shard_dim_alltoall"}


def test_every_operator_but_a_few_takes_a_group():
    c10d_tap.install()
    without = {name for name, place in c10d_tap._GROUP_AT.items() if place < 0}
    assert without == set()


def test_ranks_of_a_group_are_one_mapping_for_its_life(four):
    group = dist.new_group([3, 1])
    ranks = private.ranks_of(group)
    assert ranks is private.ranks_of(group)
    assert ranks == {rank: at for at, rank in enumerate(dist.get_process_group_ranks(group))}
    dist.destroy_process_group()
    assert private.ranks_of(group) is None


def test_groups_of_the_rank_are_those_it_is_in(four):
    mine = dist.new_group([0, 1])
    dist.new_group([2, 3])
    assert private.groups_of_rank() == [dist.group.WORLD, mine]


def test_a_mesh_names_the_groups_of_its_axes(four):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    expected = [(axis, mesh.get_group(axis).group_name) for axis in ("dp", "tp")]
    assert private.axes_of(mesh) == expected
    assert private.axes_of(mesh["tp"]) == expected[1:]
    assert private.is_mesh_of_groups(mesh)
    assert private.axes_of(init_device_mesh("cpu", (4,))) == []  # its axis has no name


def test_a_mesh_without_this_rank_names_none(four):
    mesh = DeviceMesh("cpu", torch.tensor([2, 3]), mesh_dim_names=("dp",))
    assert private.axes_of(mesh) == []


def test_a_slice_gets_its_groups_after_it_was_made(four):
    seen = []
    init = DeviceMesh.__init__

    def spy(mesh, *args, **kwargs):
        init(mesh, *args, **kwargs)
        seen.append(private.is_mesh_of_groups(mesh))

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    DeviceMesh.__init__ = spy
    try:
        mesh["tp"]
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    finally:
        DeviceMesh.__init__ = init
    assert seen == [False, True]
