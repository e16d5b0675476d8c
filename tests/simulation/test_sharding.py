"""A rank's part of a parameter is what torch's own cutting gives it."""

from __future__ import annotations

import contextlib
import inspect

import pytest
import torch
from torch.distributed.fsdp._fully_shard._fsdp_common import _chunk_with_empty

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
