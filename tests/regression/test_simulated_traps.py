"""What fake tensors would get wrong by themselves: each figure is the real world's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

LINEAR = 64 * 64 * 4


def in_both(function):
    """Run in a real world and in a simulated one."""
    for simulate in (False, True):
        function = pytest.mark.world_size(2, simulate=simulate)(function)
    return function


@in_both
@pytest.mark.memory(live=2 * LINEAR)
def test_a_copied_prototype_is_gone(shardcheck):
    # torch.nn.TransformerEncoder copies its layer so; torch's cache of fake operators kept it.
    prototype = nn.Linear(64, 64, bias=False)
    model = nn.Sequential(copy.deepcopy(prototype), copy.deepcopy(prototype))
    del prototype
    with shardcheck.measure(model):
        pass


@in_both
@pytest.mark.memory(live=LINEAR + 2 * 64 * 4 + 4 + 4, phase="forward")  # batch, loss, its gradient
@pytest.mark.memory(live=2 * LINEAR, phase="optimizer")
def test_what_we_ask_of_tensors_is_in_no_phase(shardcheck):
    # The region closes in the optimizer's phase. A fake tensor that says its device is an operator.
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shardcheck.measure(model, optimizer):
        model(torch.randn(2, 64)).sum().backward()
        optimizer.step()


@in_both
@pytest.mark.memory(peak=2 * LINEAR + 8)  # and the mesh: two int32
def test_the_first_operator_of_dtensor_infers_its_result(device_mesh, shardcheck):
    # It runs the operator on tensors of the whole size, in the mode of the simulated world itself.
    weight = distribute_tensor(torch.randn(128, 64), device_mesh, [Shard(0)])
    with shardcheck.measure(weight):
        weight + weight
