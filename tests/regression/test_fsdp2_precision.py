"""FSDP2 with bf16: what is gathered, what is reduced, what autograd saves; and CPU offload.

M8 has P = 2,105,344 B in fp32, in eight layers of U = P/8. State stays fp32 whatever the policy.
gloo reduces bf16 (as a reduce_scatter; DDP's bf16 hook it refuses).
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import m8
from steps import P, measure_third
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.optim import AdamW
from wrapped_fsdp import fsdp2_m8

from pytest_shardcheck import max_collectives, memory, saved_activations

U = P // 8
BF16 = torch.bfloat16
REDUCE_FP32 = MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)
REDUCE_BF16 = MixedPrecisionPolicy(param_dtype=BF16)  # gradients are reduced as they are

pytestmark = pytest.mark.world_size(2)


def measured(shardcheck, model):
    return measure_third(shardcheck, model, AdamW(model.parameters())).reading


# Two gathers of P/2, one reduction of P or P/2, and inputs of layers in bf16.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4})
@pytest.mark.memory(optimizer={2: P + 16 * 4, 4: P // 2 + 16 * 4})
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
@pytest.mark.saved_activations(bytes=8 * 32 * 256 * 2, count=8)
@pytest.mark.parametrize(
    ("policy", "reduced"),
    [pytest.param(REDUCE_FP32, P, id="fp32"), pytest.param(REDUCE_BF16, P // 2, id="bf16")],
)
def test_mixed_precision(policy, reduced, device_mesh, shardcheck):
    calls = measured(shardcheck, fsdp2_m8(device_mesh, mp_policy=policy)).collectives
    assert (calls["all_gather"].bytes, calls["all_gather"].largest) == (P, U // 2)
    assert calls["reduce_scatter"].bytes == reduced


def test_gloo_averages_bf16(device_mesh, world):
    model = fully_shard(torch.nn.Linear(2, 2, bias=False), mesh=device_mesh, mp_policy=REDUCE_BF16)
    model(torch.full((1, 2), world.rank + 1.0)).sum().backward()
    assert model.weight.grad.full_tensor().tolist() == [[1.5, 1.5], [1.5, 1.5]]


# Where only some units have it torch stops at the first product of two dtypes; where none has it
# nothing stops.
def test_the_policy_is_forgotten(device_mesh, shardcheck):
    right = max_collectives(bytes={"all_gather": P, "reduce_scatter": P})
    model = fsdp2_m8(device_mesh, mp_policy=REDUCE_FP32)
    shardcheck.check(measured(shardcheck, model), right)
    reading = measured(shardcheck, fsdp2_m8(device_mesh))
    with caught(
        "bytes[all_gather]", "4,210,688 B", "8 x all_gather of float32 [65792] (263,168 B)"
    ):
        shardcheck.check(reading, right)
    with caught("saved_activations(bytes): 131,072 B", "262,144 B (262.1 kB), 131,072 B"):
        shardcheck.check(reading, saved_activations(bytes=131_072))


# `param_dtype` alone reduces in bf16 too. It is less of everything: an exact figure tells.
def test_reducing_in_fp32_is_forgotten(device_mesh, shardcheck):
    right = memory(peak=4_803_148)
    shardcheck.check(measured(shardcheck, fsdp2_m8(device_mesh, mp_policy=REDUCE_FP32)), right)
    reading = measured(shardcheck, fsdp2_m8(device_mesh, mp_policy=REDUCE_BF16))
    with caught("B (4.8 MB) was expected", "131,584 B bfloat16 [65792] communication buffers"):
        shardcheck.check(reading, right)


class Scored(torch.nn.Module):
    """M8 with a loss outside: log_softmax saves its own output."""

    def __init__(self, mesh, policy):
        super().__init__()
        self.model = fsdp2_m8(mesh, mp_policy=policy)

    def forward(self, batch):
        return self.model(batch).log_softmax(-1)


# The root casts its output, so that the loss and what it saves are fp32: 32 x 256 x 4 B.
def test_the_output_dtype_is_forgotten(device_mesh, shardcheck):
    right = saved_activations(bytes=8 * 32 * 256 * 2 + 32 * 256 * 4)
    policy = MixedPrecisionPolicy(param_dtype=BF16, output_dtype=torch.float32)
    for each in (policy, REDUCE_BF16):
        model = Scored(device_mesh, each)
        with shardcheck.measure(model) as reading:
            model(torch.randn(32, 256)).sum().backward()
        if each is policy:
            shardcheck.check(reading, right)
    with caught("163,840 B (163.8 kB) was expected", "147,456 B (147.5 kB), 16,384 B"):
        shardcheck.check(reading, right)


# On the CPU offloading moves nothing: all figures are those without (A48).
@pytest.mark.memory(state=4_210_752, live=4_210_760, peak=5_131_344)
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
def test_offload_on_the_cpu_changes_nothing(device_mesh, shardcheck):
    measured(shardcheck, fsdp2_m8(device_mesh, offload_policy=CPUOffloadPolicy(pin_memory=False)))


def offloaded(mesh, policy):
    model = m8()
    for unit in (*model, model):
        fully_shard(unit, mesh=mesh, **({"offload_policy": policy} if policy else {}))
    return measured_on(model, mesh)


def measured_on(model, mesh):
    optimizer = AdamW(model.parameters())
    batch = torch.randn(32, 256, device=mesh.device_type)

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    return model, optimizer, step


# Only a device that is not the host tells the two apart, each under its own name.
@pytest.mark.cuda
@pytest.mark.world_size(2, device="cuda")
@pytest.mark.memory(params=0, grads=0, optimizer=0)
@pytest.mark.memory(params=P // 2, grads=P // 2, optimizer=P + 16 * 4, device="cpu")
def test_offload_keeps_state_on_the_host(device_mesh, shardcheck):
    model, optimizer, step = offloaded(device_mesh, CPUOffloadPolicy())
    step()
    with shardcheck.measure(model, optimizer):
        step()


@pytest.mark.cuda
@pytest.mark.world_size(2, device="cuda")
def test_offload_is_forgotten(device_mesh, shardcheck):
    model, optimizer, step = offloaded(device_mesh, None)
    with shardcheck.measure(model, optimizer) as reading:
        step()
    with caught("memory(params): 0 B was expected", "params 1,052,672 B, grads 1,052,672 B"):
        shardcheck.check(reading, memory(params=0))
