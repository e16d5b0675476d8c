"""Fake tensors of one storage have one address, others have others, freed ones have none."""

from __future__ import annotations

import torch

from pytest_shardcheck.simulation import simulation


def test_addresses_tell_storages_apart(tmp_path):
    real = torch.ones(4)
    with simulation(tmp_path, 0, (0,)):
        one, other = torch.ones(4), torch.ones(4)
        assert one.data_ptr() == one.untyped_storage().data_ptr() == one.view(2, 2).data_ptr() > 0
        assert one[1:].data_ptr() == one.data_ptr() + 4
        assert one.data_ptr() != other.data_ptr()
        one.untyped_storage().resize_(0)
        assert one.data_ptr() == 0
        assert torch.empty(0).data_ptr() == 0
        assert real.data_ptr() == real.untyped_storage().data_ptr() != 0
