"""A rank's part of a parameter is what torch's own cutting gives it."""

from __future__ import annotations

import contextlib
import inspect
import types

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, _runtime_utils
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pytest_shardcheck.simulation.sharding import Parts, install


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 7, 8, 9, 16])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("dim", [0, 1])
def test_parts_are_torchs(rows, ranks, dim):
    shape = (rows, 4) if dim == 0 else (4, rows)
    tensor = torch.arange(4 * rows).view(shape)
    expected = _chunk_with_empty(tensor, ranks, dim)
    parts = Parts(tensor, ranks, dim)
    assert len(parts) == len(expected) == ranks
    for number, (ours, theirs) in enumerate(zip(parts, expected, strict=True)):
        assert torch.equal(ours, theirs), number
        assert ours.stride() == theirs.stride()
        assert ours.storage_offset() == theirs.storage_offset()
        assert (ours._base is tensor) == (theirs._base is tensor)
    assert torch.equal(parts[-1], expected[-1])
    assert [part.shape for part in parts[:2]] == [part.shape for part in expected[:2]]
    with pytest.raises(IndexError):
        parts[ranks]


def test_nothing_to_cut():
    tensor = torch.empty(0, 4)
    expected = _chunk_with_empty(tensor, 3, 0)
    assert [part.shape for part in Parts(tensor, 3, 0)] == [part.shape for part in expected]


def test_torch_cuts_by_that_name():
    """Fails where a version of torch cuts otherwise: sharding then takes a minute at 1,024."""
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    with contextlib.ExitStack() as stack:
        install(stack)
        assert _fsdp_param._chunk_with_empty is Parts
        cuts = inspect.unwrap(_fsdp_param.FSDPParam._init_sharded_param)
        assert "_chunk_with_empty" in cuts.__code__.co_names
    assert _fsdp_param._chunk_with_empty is _chunk_with_empty


@pytest.mark.parametrize("numel", [1, 2, 5, 7, 8, 9, 10, 16])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 16])
def test_flat_parameters_are_cut_as_torch_does(numel, ranks):
    """Each rank's part and its padding, and what a gradient is reduced to."""
    flat = torch.arange(numel)
    expected = [shard_of(flat, rank, ranks) for rank in range(ranks)]
    reduced = _runtime_utils._get_reduce_scatter_tensors(in_world(ranks), flat)
    with contextlib.ExitStack() as stack:
        install(stack)
        assert [shard_of(flat, rank, ranks) for rank in range(ranks)] == expected
        cut = _runtime_utils._get_reduce_scatter_tensors(in_world(ranks), flat)
    assert torch.equal(cut[0], reduced[0])
    assert cut[1].shape == reduced[1].shape


def shard_of(flat, rank, ranks):
    part, padding = FlatParamHandle._get_unpadded_shard(flat, rank, ranks)
    return part.tolist(), part.storage_offset(), padding


def in_world(size):
    return types.SimpleNamespace(world_size=size)


class Counting(TorchDispatchMode):
    """Counts the tensors that operators make, but for calls to process groups."""

    def __init__(self) -> None:
        super().__init__()
        self.made = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.made += sum(isinstance(one, torch.Tensor) for one in tree_leaves(result))
        return result


@pytest.mark.world_size(1024, simulate=True, ranks=[0, 1023])
def test_fsdp1_makes_no_tensor_for_every_rank(process_group):
    """Fails where a version of torch cuts otherwise."""
    with Counting() as counting:
        model = torch.nn.Linear(64, 64)
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
        model(torch.ones(2, 64)).sum().backward()
    assert 20 < counting.made < 200
