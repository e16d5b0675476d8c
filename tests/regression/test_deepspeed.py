"""DeepSpeed's ZeRO stages: what each shards, and what its fixed buckets cost a small model.

M8 in fp32 has P = 2,105,344 B. Stages 1 to 3 step a flat fp32 partition of P / N beside its two
moments and one step count, and hold its gradient. They sum gradients with all_reduce, and gather
the stepped parameters; stage 3 scatters gradients and gathers parameters twice.
"""

from __future__ import annotations

import pytest
import steps
import torch
from mistakes import caught
from models import m8
from steps import P
from systems.deepspeed_zero import BUCKET, RESHARDS, engine, step

from pytest_shardcheck import UsageError, collectives, max_collectives, max_memory, memory

# Here, where the process that forks ranks has it once: each rank would need two seconds for it.
deepspeed = pytest.importorskip("deepspeed")

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # 2.13 renames

PARTS = {2: P // 2, 4: P // 4}
# The master copy, two moments and a step count.
PARTITION = {size: 3 * part + 4 for size, part in PARTS.items()}
SMALL_BACKWARD = max_memory(peak="7.4 MB", phase="backward")
LEAST = 4  # bytes of the scalar by which ranks agree on an overflow


def third(shardcheck, made):
    return steps.third(shardcheck, lambda: step(made), made)


@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=P, grads=P, optimizer=2 * P + 16 * 4)
@pytest.mark.collectives(all_reduce=1, phase="backward")
def test_stage_0_is_ddp(shardcheck, world):
    reading = third(shardcheck, engine(0, m8()))
    ring = 2 * (world.size - 1) * (P + LEAST) // world.size
    assert reading.collectives.total.wire_bytes == ring


@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=P, grads=PARTS, optimizer=PARTITION)
@pytest.mark.collectives(all_reduce=4, phase="backward")  # a bucket has two of eight layers
@pytest.mark.collectives(all_gather=1, all_reduce=1, phase="optimizer")
@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2_end_alike(stage, shardcheck, world):
    reading = third(shardcheck, engine(stage, m8()))
    # Not the paper's 2 P: a sum everywhere costs 2 P already, and the parameters come on top.
    ring = (world.size - 1) * (3 * P + 2 * LEAST) // world.size
    assert reading.collectives.total.wire_bytes == ring


# In backward stage 2 keeps gradients of its own partition only; stage 1 still has all.
@pytest.mark.world_size(2)
def test_stage_2_lets_go_of_gradients(shardcheck):
    shardcheck.check(third(shardcheck, engine(2, m8())), SMALL_BACKWARD)


@pytest.mark.world_size(2)
def test_stage_1_keeps_them(shardcheck):
    reading = third(shardcheck, engine(1, m8()))
    gradients = reading.phases["backward"].memory.at_peak["gradients"]
    assert gradients >= P  # all, and what is copied to a rank's own partition by then
    with caught(
        "max_memory(peak, phase='backward'): the ceiling of 7,400,000 B",
        f"gradients {gradients:,} B",
        "526,336 B float32 [131584] communication buffers (DeepSpeed's reduce bucket",
    ):
        shardcheck.check(reading, SMALL_BACKWARD)


@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params=PARTS, optimizer=PARTITION)
# The gradient's partition is allocated once; a step has a second one, in the optimizer's dtype.
@pytest.mark.memory(grads={size: 2 * part for size, part in PARTS.items()})
@pytest.mark.collectives(all_gather=8, phase="forward")  # a layer's weight and bias are one call
@pytest.mark.collectives(all_gather=8, reduce_scatter=4, phase="backward")
def test_stage_3(shardcheck, world):
    reading = third(shardcheck, engine(3, m8(), **RESHARDS))
    # Rajbhandari et al. 2020, section 7: 3 P a step; the norm is one number of 8 B.
    ring = (world.size - 1) * (3 * P + 2 * 8) // world.size
    assert reading.collectives.total.wire_bytes == ring


# The published surprise (DeepSpeed #1302, DeepSpeedExamples #336): 5e8 numbers x 4 B, for a model
# of half a megabyte of parameters a layer.
@pytest.mark.world_size(2, 4)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_default_bucket_is_two_gigabytes(stage, shardcheck):
    ceiling = max_memory(peak="10 MB")
    shardcheck.check(third(shardcheck, engine(stage, m8(), **RESHARDS)), ceiling)
    made = engine(stage, m8(), **RESHARDS, reduce_bucket_size=500_000_000)
    reading = third(shardcheck, made)
    assert reading.memory.state < 8_000_000
    with caught(
        "2,000,000,000 B float32 [500000000] communication buffers "
        "(DeepSpeed's reduce bucket of reduce_bucket_size elements)",
    ):
        shardcheck.check(reading, ceiling)


# Below 1e9 live numbers stage 3 keeps what forward gathered: a small model is never resharded.
@pytest.mark.world_size(2)
def test_stage_3_keeps_small_models_whole_by_default(shardcheck):
    whole = max_memory(params=P // 2)
    shardcheck.check(third(shardcheck, engine(3, m8(), **RESHARDS)), whole)
    with caught(
        "max_memory(params): the ceiling of 1,052,672 B",
        "params 3,158,016 B",  # the shards, and all parameters
    ):
        shardcheck.check(third(shardcheck, engine(3, m8())), whole)


# A37, DeepSpeed #5758: stages 1 and 2 always all-reduce, whatever reduce_scatter says.
@pytest.mark.world_size(2)
def test_reduce_scatter_is_an_all_reduce(shardcheck):
    reading = third(shardcheck, engine(2, m8(), reduce_scatter=True))
    with caught(
        "collectives(all_reduce, phase='backward'): 0 calls were expected",
        "4 x all_reduce of float32 [131584] (526,336 B)",
        "stage_1_and_2.py:",
        "collectives(reduce_scatter, phase='backward'): 4 calls were expected",
    ):
        shardcheck.check(reading, collectives(reduce_scatter=4, phase="backward"))
    with caught("max_collectives(wire_bytes)"):
        shardcheck.check(reading, max_collectives(wire_bytes=2 * P // 2 + 2 * LEAST))


# Offloaded state is on the CPU, as everything is here; staging buffers have a name of their own.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=P, grads=P // 2, optimizer=3 * P // 2 + 4)
@pytest.mark.parametrize("stage", [1, 2])
def test_an_offloaded_optimizer(stage, shardcheck):
    reading = third(shardcheck, engine(stage, m8(), offload_optimizer={"device": "cpu"}))
    staged = {r.name for r in reading.memory.largest if r.category == "communication buffers"}
    assert "DeepSpeed's param_buffer_of_bit16_for_cpu_offload_groups" in staged
    with caught("max_memory(optimizer)", "optimizer 3,158,020 B"):
        shardcheck.check(reading, max_memory(optimizer=0))  # a host has to hold it, too


# bf16 parameters, and fp32 master copies that a sum over the model does not show.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=P // 2, optimizer=3 * P // 2 + 4)
def test_master_copies(shardcheck):
    made = engine(2, m8(), dtype="bf16")

    def half_step():
        loss = made(torch.randn(32, 256, dtype=torch.bfloat16)).sum()
        made.backward(loss)
        made.step()

    half_step()
    half_step()
    with shardcheck.measure(made) as reading:
        half_step()
    masters = [r for r in reading.memory.largest if r.name == "DeepSpeed's master partition"]
    assert [(r.bytes, r.dtype) for r in masters] == [(P // 2, "float32")]
    with caught("memory(optimizer)", f"optimizer {3 * P // 2 + 4:,} B"):
        shardcheck.check(reading, memory(optimizer=2 * P // 4 + 4))  # moments in bf16


# Reducing after each of three micro-batches is what gradient_accumulation_steps avoids.
@pytest.mark.world_size(2)
def test_accumulation(shardcheck):
    def micro_batches(made):
        for _ in range(3):
            step(made)

    once = collectives(all_reduce=4, phase="backward")
    made = engine(1, m8(), micro_batches=3)
    micro_batches(made)
    with shardcheck.measure(made) as reading:
        micro_batches(made)
    shardcheck.check(reading, once)
    made = engine(2, m8(), micro_batches=3)  # which has no room to keep what is not its own
    micro_batches(made)
    with shardcheck.measure(made) as reading:
        micro_batches(made)
    with caught("collectives(all_reduce, phase='backward'): 4 calls were expected", "12 calls"):
        shardcheck.check(reading, once)


@pytest.mark.world_size(2)
def test_a_module_alone_has_its_shards(shardcheck):
    made = engine(3, m8(), **RESHARDS)
    step(made)
    with shardcheck.measure(made.module) as reading:
        pass
    assert reading.memory.params == P // 2


@pytest.mark.world_size(2)
def test_an_attribute_that_is_gone_is_an_error(shardcheck):
    made = engine(1, m8())
    del made.optimizer.single_partition_of_fp32_groups
    with (
        pytest.raises(UsageError, match=r"DeepSpeed 0\.\d+.* has no .single_partition_of_fp32"),
        shardcheck.measure(made),
    ):
        pass
    assert BUCKET * 4 == 2 * P // 8
