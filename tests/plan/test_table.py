"""Plans as text: one unit, the limit's own; marks; the answer and its reason."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_shardcheck.plan import (
    ActivationBytes,
    ClosedForm,
    Plan,
    accounting,
    heading,
    plan_closed_form,
    tables,
)
from pytest_shardcheck.plan.table import Scale, given_size

GB = 10**9


def plans(
    *ways: dict[str, int], limit: int | str = "80 GB", worlds: Any = (8, 16), **options: Any
) -> list[Plan]:
    forms = [ClosedForm(**{"params": 70 * GB, "stage": 3, **options, **way}) for way in ways]
    return [
        plan_closed_form(
            one, limit=limit, worlds=[world for world in worlds if world % one.step == 0]
        )
        for one in forms
    ]


def test_what_was_asked() -> None:
    assert heading(
        params=70 * GB, accounting=accounting(), limit="80 GB", given={"buffers": "2 GiB"}
    ) == [
        "70,000,000,000 parameters at 16 B = 1,120.0 GB in all",
        "accounting: mixed precision of the ZeRO paper",
        (
            "bytes per parameter: weights 2 (fp16), gradients 2 (fp16), first moment 4 (fp32), "
            "second moment 4 (fp32), master copy 4 (fp32)"
        ),
        "limit per GPU: 80 GB (74.5 GiB)",
        "buffers: 2 GiB (2.1 GB)",
    ]


def test_a_table() -> None:
    lines = tables(plans({"stage": 0}, {"stage": 2}, {}, {"shard": 16}), limit="80 GB")
    assert lines == [
        "",
        "GB per GPU (* within the limit):",
        "  GPUs   ZeRO-0   ZeRO-2   ZeRO-3   HSDP shard 16",
        "     8  1,120.0    262.5    140.0               -",
        "    16  1,120.0    201.2     70.0*           70.0*",
        "",
        (
            "ZeRO-0         never: 1,120.0 GB stay on every GPU (weights 140.0, gradients 140.0, "
            "first moment 280.0, second moment 280.0, master copy 280.0), 1,040.0 GB above the "
            "limit"
        ),
        "ZeRO-2         never: 140.0 GB stay on every GPU (weights 140.0), 60.0 GB above the limit",
        (
            "ZeRO-3         fits from 14 GPUs: 80.0 GB each (weights 10.0, gradients 10.0, "
            "first moment 20.0, second moment 20.0, master copy 20.0), nothing to spare"
        ),
        (
            "HSDP shard 16  fits from 16 GPUs: 70.0 GB each (weights 8.8, gradients 8.8, "
            "first moment 17.5, second moment 17.5, master copy 17.5), 10.0 GB to spare"
        ),
    ]


def test_one_world_is_broken_down() -> None:
    held = ActivationBytes(stored=5 * GB)
    ways: tuple[dict[str, int], ...] = ({"stage": 1}, {}, {"shard": 16})
    found = plans(*ways, worlds=[8], activations=held, limit="150 GB")
    assert tables(found, limit="150 GB")[:9] == [
        "",
        "GB per GPU of 8 (* within the limit):",
        "                 ZeRO-1   ZeRO-3   HSDP shard 16",
        "        weights   140.0     17.5               -",
        "      gradients   140.0     17.5               -",
        "   first moment    35.0     35.0               -",
        "  second moment    35.0     35.0               -",
        "    master copy    35.0     35.0               -",
        "    activations     5.0      5.0               -",
    ]
    assert tables(found, limit="150 GB")[9] == "          total   390.0    145.0*              -"


def test_the_same_in_gib() -> None:
    lines = tables(plans({}, limit="80 GiB"), limit="80 GiB")
    assert lines[1] == "GiB per GPU (* within the limit):"
    assert lines[4].split() == ["16", "65.2*"]
    assert "14 GPUs: 74.5 GiB each" in lines[-1]
    assert not any(" GB" in line for line in lines)


def test_a_replica_is_named_and_what_would_fit() -> None:
    lines = tables(plans({"shard": 8}, {"replicate": 2}), limit="80 GB")
    assert lines[-2].startswith("HSDP shard 8     never: more replicas don't help, 140.0 GB stay")
    assert lines[-2].endswith("60.0 GB above the limit; shards of 14 would fit")
    assert "fits from 28 GPUs (2 replicas of 14 shards): 80.0 GB each" in lines[-1]


def test_activations_are_named_where_they_are_the_reason() -> None:
    held = ActivationBytes(stored=100 * GB, recomputed=GB)
    line = tables(plans({}, activations=held), limit="80 GB")[-1]
    assert line == (
        "ZeRO-3  never: 101.0 GB stay on every GPU (activations 100.0, recomputed activations "
        "1.0), 21.0 GB above the limit"
    )


def test_what_is_rounded_to_the_limit_is_no_fit_and_says_so_to_the_byte() -> None:
    (plan,) = plans({"stage": 2}, limit=140 * GB + 13, worlds=[70 * GB])
    lines = tables([plan], limit="140 GB")
    assert lines[8] == "          total   140.0"  # no star
    assert lines[-1] == (
        "ZeRO-2  never: 140.0 GB stay on every GPU (weights 140.0), the smallest shards are "
        "14 B, 1 B above the limit"
    )


def test_a_byte_to_spare() -> None:
    lines = tables(plans({}, limit=80 * GB + 1), limit="80 GB")
    assert lines[-1].endswith(", 1 B to spare")


def test_variants_are_compared_first() -> None:
    found = [
        Plan(name=plan.name, variant=variant, answer=plan.answer, footprints=plan.footprints)
        for variant, stored in (("half", 50 * GB), ("all", 100 * GB))
        for plan in plans({"stage": 2}, {}, activations=ActivationBytes(stored=stored))
    ]
    lines = tables(found, limit="80 GB")
    assert lines[:6] == [
        "",
        "smallest world:",
        "        ZeRO-2  ZeRO-3",
        "  half   never      38",
        "   all   never   never",
        "",
    ]
    assert [line for line in lines if line.endswith(":")][1:] == [
        "half:",
        "GB per GPU (* within the limit):",
        "all:",
        "GB per GPU (* within the limit):",
    ]


def test_one_gpu() -> None:
    line = tables(plans({}, params=GB, worlds=[]), limit="80 GB")[-1]
    assert line.startswith("ZeRO-3  fits from 1 GPU: 16.0 GB each")


@pytest.mark.parametrize(
    ("limit", "size", "text"),
    [
        ("80 GB", 140 * GB, "140.0 GB"),
        ("8 GB", 140 * GB, "140.00 GB"),
        ("0.5 GB", 140 * GB, "140.000 GB"),
        ("80 GiB", 140 * 1024**3, "140.0 GiB"),
        ("80 GB", 0, "0.0 GB"),
        ("80 GB", 1000, "1,000 B"),
        ("80,000 MB", 1000**3, "1,000.0 MB"),
        ("500 B", 1000, "1,000 B"),
        (80 * GB, 140 * GB, "140.0 GB"),
        ("2 KB", 3500, "3.50 kB"),
    ],
)
def test_sizes_are_in_the_unit_of_the_limit(limit: int | str, size: int, text: str) -> None:
    assert Scale.of(limit).size(size) == text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("80 GB", "80 GB (74.5 GiB)"),
        ("80 GiB", "80 GiB (85.9 GB)"),
        ("80000 MB", "80000 MB (76,293.9 MiB)"),
        ("512 B", "512 B"),
        (80 * GB, "80.0 GB (74.5 GiB)"),
        ("1 KB", "1 KB (1.0 KiB)"),
    ],
)
def test_a_given_size_is_written_in_both_systems(given: int | str, text: str) -> None:
    assert given_size(given) == text
