"""What fake tensors would get wrong by themselves: each figure is the real world's."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
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


@in_both
@pytest.mark.memory(peak=8_648)  # 6,928 where the output is transposed as the input is
def test_batch_norm_of_a_transposed_input_is_in_order(shardcheck):
    norm, head = nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False)
    with shardcheck.measure(norm, head):
        head(norm(torch.randn(4, 16, 8).mT).mT).sum().backward()


@in_both
@pytest.mark.memory(peak=3 * LINEAR, live=LINEAR)
def test_the_mean_of_losses_keeps_the_storage_of_all(shardcheck):
    # The kernel makes a tensor of all losses, and shrinks it to one number.
    with shardcheck.measure():
        loss = nn.functional.mse_loss(torch.ones(64, 64), torch.zeros(64, 64))
    assert loss.untyped_storage().nbytes() == LINEAR


@in_both
def test_a_padded_shard_is_padded_once(device_mesh, shardcheck):
    # Rank 1 has two rows of five, padded to three when it is sharded. FSDP2 does it again in the
    # first forward where it can't see that; it looks for a plain tensor's type.
    model = nn.Linear(256, 5, bias=False)
    fully_shard(model, mesh=device_mesh)
    with shardcheck.measure(model) as measurement:
        model(torch.randn(1, 256))
    (shard,) = (r for r in measurement.reading.memory.largest if r.category == "parameters")
    assert (shard.bytes, shard.module) == (3 * 256 * 4, "")


@in_both
def test_different_dtypes_are_an_error(process_group):
    hidden = nn.Linear(8, 8, dtype=torch.bfloat16)(torch.ones(2, 8, dtype=torch.bfloat16))
    scaled = hidden * torch.ones(8)  # a buffer in float32, as of a norm that nobody converted
    assert scaled.dtype == torch.float32
    with pytest.raises(RuntimeError, match="mat1 and mat2 must have the same dtype"):
        nn.Linear(8, 8, dtype=torch.bfloat16)(scaled)
    with pytest.raises(RuntimeError, match="same dtype"):
        scaled @ hidden.mT
    normed = nn.LayerNorm(8)(hidden)  # whose kernel takes parameters in float32
    assert normed.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.world_size(2, simulate=True)
def test_a_whole_that_is_not_its_parts_is_an_error(process_group):
    # gloo refuses these, each in words of its own.
    part, bf16 = torch.ones(4), torch.empty(8, dtype=torch.bfloat16)
    dist.all_gather_into_tensor(torch.empty(8), part)
    dist.reduce_scatter_tensor(part, torch.ones(8))
    with pytest.raises(RuntimeError, match=r"7 elements of torch.float32 are not 2 times 4 of"):
        dist.all_gather_into_tensor(torch.empty(7), part)
    with pytest.raises(RuntimeError, match=r"test_simulated_traps.py:.* of torch.bfloat16 are not"):
        dist.all_gather_into_tensor(bf16, part)
    with pytest.raises(RuntimeError, match=r"7 elements of torch.float32 are not 2 times 3 of"):
        dist.reduce_scatter_tensor(torch.empty(3), torch.ones(7))
