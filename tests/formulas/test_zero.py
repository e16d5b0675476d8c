"""The closed forms of ZeRO against the paper's own figures and hand counts."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_shardcheck import UsageError, WorldSpec, expect

PSI = 7_500_000_000  # figure 1: mixed precision Adam, 64 ranks
PAPER = {"params": PSI, "param_dtype": "fp16", "master_weights": True}


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_the_paper(stage: int, gigabytes: float) -> None:
    state = expect.zero(stage=stage, **PAPER)(WorldSpec(size=64))
    assert state / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_sixteen_bytes_a_parameter() -> None:
    fp32 = expect.zero(stage=0, params=1)(WorldSpec(size=8))
    mixed = expect.zero(stage=0, params=1, param_dtype="bf16", master_weights=True)
    assert fp32 == mixed(WorldSpec(size=8)) == 16


def test_parts_and_their_sum() -> None:
    state = expect.zero(stage=2, params=526_336, tensors=16)
    world = WorldSpec(size=4)
    assert state.params(world) == 2_105_344
    assert state.grads(world) == 526_336
    assert state.optimizer(world) == 1_052_672 + 64
    assert state(world) == 2_105_344 + 526_336 + 1_052_672 + 64


def test_shards_are_padded() -> None:
    assert expect.zero(stage=3, params=5, optimizer="sgd").params(WorldSpec(size=4)) == 8


def test_an_axis_shards_alone() -> None:
    world = WorldSpec(size=8, named_axes=(("replicate", 2), ("shard", 4)))
    state = expect.zero(stage=3, params=1024, optimizer="sgd_momentum", axis="shard")
    assert state(world) == 3 * 1024
    with pytest.raises(UsageError, match=r"axis='shard'\): the mesh has the axes world"):
        state(WorldSpec(size=8))


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ({"stage": 4, "params": 1}, r"stage=4\): expected 0, 1, 2 or 3"),
        ({"stage": 1, "params": -1}, r"params=-1\): expected an int"),
        ({"stage": 1, "params": 1.5}, r"params=1.5\): expected an int"),
        ({"stage": 1, "params": 1, "optimizer": "lion"}, "optimizer='lion'"),
        ({"stage": 1, "params": 1, "param_dtype": "int3"}, "'int3' is no dtype"),
        ({"stage": 1, "params": 1, "tensors": True}, r"tensors=True\): expected"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        expect.zero(**arguments)


def test_a_torch_dtype_is_taken() -> None:
    torch = pytest.importorskip("torch")
    assert (
        expect.zero(stage=0, params=1, param_dtype=torch.bfloat16, optimizer="sgd")(
            WorldSpec(size=1)
        )
        == 4
    )
