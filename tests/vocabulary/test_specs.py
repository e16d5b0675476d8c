from __future__ import annotations

import json

import pytest

from pytest_shardcheck.vocabulary import UsageError, WorldSpec, default_backend

DP_TP = (("dp", 2), ("tp", 3))
NCCL = "cpu:gloo,cuda:nccl"


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (WorldSpec(size=2), "world2"),
        (WorldSpec(size=2, timeout_s=5.0), "world2"),
        (WorldSpec(size=2, backend="nccl"), "world2-nccl"),
        (WorldSpec(size=2, device="cuda", backend=NCCL), "world2-cuda"),
        (WorldSpec(size=2, device="cuda", backend="gloo"), "world2-cuda-gloo"),
        (WorldSpec(size=2, backend="cpu:gloo,cuda:gloo"), "world2-cpu-gloo-cuda-gloo"),
        (WorldSpec(size=6, named_axes=DP_TP), "dp2xtp3"),
        (WorldSpec(size=6, named_axes=DP_TP, device="cuda", backend=NCCL), "dp2xtp3-cuda"),
        (WorldSpec(size=64, simulated=True), "world64-simulated"),
    ],
)
def test_an_id_carries_whatever_is_not_the_default(spec: WorldSpec, name: str) -> None:
    assert spec.id == name


def test_all_ranks_of_a_real_world_run_and_some_of_a_simulated_one() -> None:
    assert WorldSpec(size=3).running == (0, 1, 2)
    assert WorldSpec(size=64, simulated=True, ranks=(0, 63)).running == (0, 63)
    with pytest.raises(UsageError, match="Only of a simulated world"):
        WorldSpec(size=4, ranks=(0,))
    for ranks in ((), (4,), (0, 4), (-1,)):
        with pytest.raises(UsageError, match="world of 4"):
            WorldSpec(size=4, simulated=True, ranks=ranks)


def test_the_default_backend_goes_with_the_device() -> None:
    assert [default_backend(device) for device in ("cpu", "cuda")] == ["gloo", NCCL]


def test_ranks_are_placed_row_major() -> None:
    spec = WorldSpec(size=6, named_axes=DP_TP)
    assert [tuple(spec.coordinate(rank).items()) for rank in range(6)] == [
        (("dp", dp), ("tp", tp)) for dp in range(2) for tp in range(3)
    ]


def test_a_world_without_a_mesh_is_one_axis() -> None:
    spec = WorldSpec(size=4)
    assert spec.axes == (("world", 4),)
    assert spec.coordinate(3) == {"world": 3}


@pytest.mark.parametrize("rank", [-1, 6])
def test_no_rank_outside_of_the_world_has_a_place(rank: int) -> None:
    with pytest.raises(IndexError, match=f"rank {rank} is not in a world of 6"):
        WorldSpec(size=6, named_axes=DP_TP).coordinate(rank)


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(UsageError, match=r"\{'dp': 2, 'tp': 3\} holds 6 ranks, not 4"):
        WorldSpec(size=4, named_axes=DP_TP)


def test_an_empty_world_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one rank, not 0"):
        WorldSpec(size=0)


@pytest.mark.parametrize(
    "spec",
    [
        WorldSpec(size=2),
        WorldSpec(
            size=6, named_axes=DP_TP, device="cuda", backend="nccl", timeout_s=1.5, simulated=True
        ),
    ],
)
def test_a_spec_survives_json(spec: WorldSpec) -> None:
    assert WorldSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
