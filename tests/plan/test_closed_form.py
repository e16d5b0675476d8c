"""The footprint by arithmetic: stated cases, the ZeRO paper's tables, and what was measured."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pytest_shardcheck import UsageError
from pytest_shardcheck.plan import Accounting, ActivationBytes, ClosedForm, Footprint, accounting

GB = 10**9
SIMPLE = accounting(moments="fp16", master=None)
FP32_MOMENTS = accounting(master=None)
MIXED = accounting()
FP32 = accounting(weights="fp32")

# Their tables are measured and compared in every run of the suite.
SYSTEMS = Path(__file__).parents[2] / "docs" / "systems"


def parts(footprint: Footprint) -> dict[str, int]:
    return {part.name: part.bytes for part in footprint.parts}


def form(stage: int = 3, each: Accounting = MIXED, **options: Any) -> ClosedForm:
    return ClosedForm(**{"params": 70 * GB, "stage": stage, "accounting": each, **options})


# What is kept for 70e9 parameters, on one GPU.
@pytest.mark.parametrize(
    ("each", "moments", "master", "total"),
    [(SIMPLE, 280, 0, 560), (FP32_MOMENTS, 560, 0, 840), (MIXED, 560, 280, 1120)],
)
def test_70_billion_parameters(each: Accounting, moments: int, master: int, total: int) -> None:
    held = parts(form(each=each).footprint(1))
    assert held["weights"] == held["gradients"] == 140 * GB
    assert held["first moment"] + held["second moment"] == moments * GB
    assert held.get("master copy", 0) == master * GB
    assert form(each=each).footprint(1).total == total * GB


def test_eight_gpus_of_80_gb_hold_560_gb_sharded() -> None:
    footprint = form(each=SIMPLE).footprint(8)
    assert footprint.total == 70 * GB  # of 80: 640 GB hold 560
    assert footprint.shards == 8
    assert form(each=FP32_MOMENTS).footprint(8).total == 105 * GB


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (0, {"weights": 140, "gradients": 140, "first moment": 280, "master copy": 280}),
        (1, {"weights": 140, "gradients": 140, "first moment": 35, "master copy": 35}),
        (2, {"weights": 140, "gradients": 17.5, "first moment": 35, "master copy": 35}),
        (3, {"weights": 17.5, "gradients": 17.5, "first moment": 35, "master copy": 35}),
    ],
)
def test_what_each_stage_divides(stage: int, expected: dict[str, float]) -> None:
    footprint = form(stage).footprint(8)
    held = parts(footprint)
    assert {name: held[name] / GB for name in expected} == expected
    whole = {part.name for part in footprint.parts if not part.divided}
    assert whole == {name for name in held if held[name] == parts(form().footprint(1))[name]}
    assert footprint.total == footprint.state == sum(held.values())
    assert (footprint.shards, footprint.replicas) == ((1, 8) if stage == 0 else (8, 1))


# Table 1 of the paper, in GB: 128 billion parameters.
@pytest.mark.parametrize(
    ("world", "one", "two", "three"),
    [
        (1, 2048, 2048, 2048),
        (4, 896, 704, 512),
        (16, 608, 368, 128),
        (64, 536, 284, 32),
        (256, 518, 263, 8),
        (1024, 513, 257, 2),
    ],
)
def test_table_1_of_the_paper(world: int, one: int, two: int, three: int) -> None:
    found = [form(stage, params=128 * GB).footprint(world).total / GB for stage in (1, 2, 3)]
    assert found == pytest.approx([one, two, three], abs=0.8)  # the paper drops decimals


def test_shards_are_padded() -> None:
    each = accounting(weights="fp32", optimizer="none")
    assert parts(form(each=each, params=5).footprint(4)) == {"weights": 8, "gradients": 8}
    assert parts(form(each=each, params=5).footprint(64)) == {"weights": 4, "gradients": 4}


# What the suite measures and compares in every run, M8 in fp32; in the last column the parameter
# tensors whose step counters a rank has.
@pytest.mark.parametrize(
    ("system", "options", "tensors"),
    [
        ("DDP", {"stage": 0}, lambda world: 16),
        ("ZeroRedundancyOptimizer under DDP", {"stage": 1}, lambda world: 16 // world),
        ("FSDP1, one flat unit", {"stage": 3}, lambda world: 1),
        ("FSDP2, no reshard", {"stage": 3}, lambda world: 16),
        ("FSDP2, reshard", {"stage": 3}, lambda world: 16),
        ("FSDP2, one unit", {"stage": 3}, lambda world: 16),
    ],
)
@pytest.mark.parametrize("world", [2, 4])
def test_the_measured_state_is_exact(
    system: str, options: dict[str, int], tensors: Any, world: int
) -> None:
    planned = form(each=FP32, params=526_336, tensors=tensors(world), **options)
    assert planned.footprint(world).state == measured(system, world)["state"]


# DeepSpeed keeps a master copy of fp32 weights, too, and in stage 3 a second one of the gradients.
@pytest.mark.parametrize(
    ("stage", "each"),
    [
        (2, accounting(weights="fp32", master="fp32")),
        (3, accounting(weights="fp32", grads=2 * 4, master="fp32")),
    ],
)
@pytest.mark.parametrize("world", [2, 4])
def test_the_measured_state_of_deepspeed_is_exact(stage: int, each: Accounting, world: int) -> None:
    planned = form(stage, each, params=526_336, tensors=1)  # of one flat partition
    state = measured(f"DeepSpeed, stage {stage}", world)["state"]
    assert planned.footprint(world).state == state


def test_shard_grad_op_rests_as_stage_3_does() -> None:
    planned = form(3, FP32, params=526_336, tensors=8).footprint(2)  # eight flat parameters
    assert planned.state == measured("FSDP1, SHARD_GRAD_OP", 2)["state"]
    stage_2 = form(2, FP32, params=526_336, tensors=8).footprint(2)
    # In the step it gathers all weights, as stage 2 has them.
    assert measured("FSDP1, SHARD_GRAD_OP", 2)["peak"] > stage_2.total > planned.total


# design.md, section 5.
@pytest.mark.parametrize(
    ("stage", "tensors", "states"),
    [
        (0, {2: 16, 4: 16}, {2: 8_421_440, 4: 8_421_440}),
        (1, {2: 8, 4: 4}, {2: 6_316_064, 4: 5_263_376}),
        (3, {2: 1, 4: 1}, {2: 4_210_692, 4: 2_105_348}),
        (3, {2: 16, 4: 16}, {2: 4_210_752, 4: 2_105_408}),
    ],
)
def test_the_recorded_state_is_exact(
    stage: int, tensors: dict[int, int], states: dict[int, int]
) -> None:
    for world, state in states.items():
        planned = form(stage, FP32, params=526_336, tensors=tensors[world])
        assert planned.footprint(world).state == state


def test_hsdp_is_exact() -> None:
    planned = form(each=FP32, params=526_336, tensors=16, shard=2)
    footprint = planned.footprint(4)
    assert footprint.state == measured("FSDP2, replicas of two shards", 4)["state"]
    assert (footprint.shards, footprint.replicas) == (2, 2)


def test_ddp_has_its_buckets_beside_its_state() -> None:
    buckets = 4 * 526_336
    planned = form(0, FP32, params=526_336, tensors=16, buffers=buckets).footprint(2)
    assert planned.total == 10_526_784  # live, as design.md has it
    assert planned.total == measured("DDP", 2)["live"] - 8  # a scalar that the step holds
    assert planned.state == 8_421_440


@pytest.mark.parametrize("world", [2, 4])
def test_tensor_parallel_is_close(world: int) -> None:
    planned = form(0, FP32, params=526_336, tensors=16, tensor_parallel=world).footprint(world)
    assert planned.state == pytest.approx(measured("Tensor parallel", world)["state"], rel=0.01)


def test_tensor_parallel_beside_fsdp_is_close() -> None:
    planned = form(3, FP32, params=526_336, tensors=16, tensor_parallel=2).footprint(4)
    assert planned.state == pytest.approx(measured("Tensor parallel x FSDP2", 4)["state"], rel=0.01)
    assert planned.shards == 2


# Llama-2-70B under FSDP2, all in bf16, live at rest (design.md): in GiB.
@pytest.mark.parametrize(("world", "gibibytes"), [(8, 64.240), (64, 8.030), (1024, 0.502)])
def test_llama_2_70b_at_rest(world: int, gibibytes: float) -> None:
    each = accounting(weights="bf16", moments="bf16", master=None)
    state = form(each=each, params=68_976_648_192).footprint(world).state
    assert round(state / 1024**3, 3) == gibibytes


def test_optimizer_state_of_a_public_report() -> None:
    # NET16 on 8 ranks (pytorch issue 131342): 2,080 B a rank, where global shapes say 16,416.
    held = parts(form(each=FP32, params=2_048, tensors=8).footprint(8))
    assert held["first moment"] + held["second moment"] + held["step counters"] == 2_080
    one = parts(form(each=FP32, params=2_048, tensors=8).footprint(1))
    assert one["first moment"] + one["second moment"] + one["step counters"] == 16_416


def test_a_fixed_bucket_makes_zero_2_larger_than_zero_1() -> None:
    # DeepSpeed's reduce_bucket_size of 5e8 elements in fp16 (DeepSpeedExamples issue 123).
    bucket = 500_000_000 * 2
    small = {"params": 100_000_000, "each": MIXED}
    plain = form(1, **small).footprint(8)
    bucketed = form(2, **small, buffers=bucket).footprint(8)
    assert bucketed.total > plain.total
    assert bucketed.state < plain.state
    assert parts(bucketed)["buffers"] == GB


def test_activations_are_not_divided() -> None:
    planned = form(activations=ActivationBytes(stored=100 * GB, recomputed=7 * GB))
    for world in (1, 8, 1024):
        held = parts(planned.footprint(world))
        assert (held["activations"], held["recomputed activations"]) == (100 * GB, 7 * GB)
    assert planned.footprint(8).total == planned.footprint(8).state + 107 * GB


def test_the_state_does_not_depend_on_the_number_of_replicas() -> None:
    planned = form(shard=8)
    assert [planned.footprint(8 * n).total for n in (1, 3, 128)] == [140 * GB] * 3
    assert [planned.footprint(8 * n).replicas for n in (1, 3, 128)] == [1, 3, 128]
    two = form(replicate=2)
    assert two.footprint(16).total == 140 * GB
    assert (two.footprint(16).shards, two.footprint(16).replicas) == (8, 2)
    assert form(shard=1).footprint(4).total == form(0).footprint(4).total


def test_axes_multiply() -> None:
    planned = form(shard=4, tensor_parallel=8)
    footprint = planned.footprint(96)
    assert (footprint.shards, footprint.replicas) == (4, 3)
    assert footprint.total == 1120 * GB // 32
    assert planned.step == 32


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"stage": 0}, "ZeRO-0"),
        ({"stage": 3}, "ZeRO-3"),
        ({"shard": 8}, "HSDP shard 8"),
        ({"replicate": 2}, "HSDP 2 replicas"),
        ({"replicate": 1}, "HSDP 1 replica"),
    ],
)
def test_names(options: dict[str, int], name: str) -> None:
    assert form(**options).name == name


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"stage": 4}, "stage=4: expected 0, 1, 2 or 3"),
        ({"stage": True}, "stage=True: expected 0, 1, 2 or 3"),
        ({"stage": "3"}, "stage='3': expected 0, 1, 2 or 3"),
        ({"params": 0}, "params=0: expected an int from 1 on"),
        ({"params": 70e9}, "params=70000000000.0: expected an int"),
        ({"params": 10**19}, r"params=1e\+19: expected at most 1e\+18"),
        ({"buffers": -1}, "buffers=-1: expected an int from 0 on"),
        ({"tensors": 1.0}, "tensors=1.0: expected an int"),
        ({"shard": 0}, "shard=0: expected an int from 1 on"),
        ({"replicate": False}, "replicate=False: expected an int"),
        ({"tensor_parallel": 0}, "tensor_parallel=0: expected an int"),
        ({"shard": 8, "replicate": 2}, "shard=8 and replicate=2: give one"),
        ({"stage": 2, "shard": 8}, "stage=2: HSDP is stage 3 inside of each replica"),
    ],
)
def test_what_no_training_has_is_refused(options: dict[str, Any], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        form(**options)


@pytest.mark.parametrize(
    ("options", "world", "seen"),
    [
        ({}, 0, "world=0: expected an int from 1 on"),
        ({}, -8, "world=-8: expected an int"),
        ({}, 8.0, "world=8.0: expected an int"),
        ({"shard": 8}, 12, "world=12: HSDP shard 8 needs a multiple of 8"),
        ({"replicate": 3}, 8, "world=8: HSDP 3 replicas needs a multiple of 3"),
        (
            {"shard": 4, "tensor_parallel": 8},
            16,
            "world=16: HSDP shard 4 x tensor parallel 8 needs a multiple of 32",
        ),
    ],
)
def test_worlds_that_can_not_be_are_refused(options: dict[str, Any], world: Any, seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        form(**options).footprint(world)


def measured(system: str, world: int) -> dict[str, int]:
    """Return the row of a system that tests/regression measures and compares in every run."""
    page = SYSTEMS / ("deepspeed.md" if system.startswith("DeepSpeed") else "README.md")
    row = re.search(rf"^\| {re.escape(system)} \| {world} \|(.*)\|$", page.read_text(), re.M)
    assert row, f"no row of {system} at world {world}"
    state, live, peak = (int(cell.replace(",", "")) for cell in row[1].split("|")[:3])
    return {"state": state, "live": live, "peak": peak}
