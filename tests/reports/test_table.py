from __future__ import annotations

from typing import Any

from pytest_shardcheck.reports import WorldRow, table
from pytest_shardcheck.vocabulary import MemoryReading, Reading, StateBytes

M8 = {"params": 2_105_344, "grads": 2_105_344, "optimizer": 4_210_752, "buffers": 0}
NODE = "tests/regression/test_state.py::test_ddp[world2]"


def read(rank: int, region: str = "step", occurrence: int = 0, **state: Any) -> Reading:
    held = MemoryReading(device="cpu", by_device={"cpu": StateBytes(**(state or M8))})
    return Reading(rank=rank, region=region, occurrence=occurrence, memory=held)


def row(readings: dict[int, list[Reading]], nodeid: str = NODE) -> WorldRow:
    return WorldRow(nodeid=nodeid, readings=readings)


def cells(line: str) -> list[str]:
    return line.split()


def test_equal_ranks_share_a_line() -> None:
    assert table([row({0: [read(0)], 1: [read(1)]}, "tests/test_s.py::test_ddp")], 99) == [
        "  region  ranks     params      grads  optimizer  buffers      state",
        "tests/test_s.py::test_ddp",
        "  step    0-1    2,105,344  2,105,344  4,210,752        0  8,421,440",
    ]


def test_the_order_in_which_ranks_answered_does_not_show() -> None:
    steps = {1: [read(1), read(1, occurrence=1)], 0: [read(0), read(0, occurrence=1)]}
    late = {**steps, 1: [read(1), read(1, occurrence=1, params=3)]}
    in_order = dict(sorted(late.items()))
    assert table([row(late)], 120) == table([row(in_order)], 120)


def test_each_test_has_its_name_above_its_lines() -> None:
    rows = [row({0: [read(0)]}, "a.py::one"), row({0: [read(0, "a"), read(0, "b")]}, "a.py::two")]
    first_words = [cells(line)[0] for line in table(rows, 120)]
    assert first_words == ["region", "a.py::one", "step", "a.py::two", "a", "b"]


def test_the_ranks_with_the_largest_state_are_marked() -> None:
    readings = {0: [read(0)], 1: [read(1, **{**M8, "grads": 1})], 2: [read(2)]}
    lines = table([row(readings)], 120)
    assert [cells(line)[1] for line in lines[2:]] == ["0,", "1"]
    assert "  0, 2*  " in lines[2]


def test_no_rank_is_marked_where_all_are_equal() -> None:
    assert "*" not in "".join(table([row({0: [read(0)], 1: [read(1)]})], 120))


def test_what_was_not_watched_is_a_dash() -> None:
    line = table([row({0: [read(0, params=5, grads=0)]})], 120)[-1]
    assert cells(line)[-5:] == ["5", "0", "-", "-", "5"]


def test_nothing_measured_is_no_table() -> None:
    empty = Reading(rank=0, region="test", implicit=True, memory=MemoryReading(device="cpu"))
    assert table([], 120) == []
    assert table([row({0: [empty]})], 120) == []


def test_a_test_that_measured_nothing_has_no_line() -> None:
    empty = Reading(rank=0, region="test", implicit=True, memory=MemoryReading(device="cpu"))
    lines = table([row({0: [empty]}, "a.py::none"), row({0: [read(0)]}, "a.py::some")], 120)
    assert [cells(line)[0] for line in lines[1:]] == ["a.py::some", "step"]


def test_equal_occurrences_share_a_line() -> None:
    steps = [read(0, occurrence=0, params=1), *(read(0, occurrence=n) for n in (1, 2, 3))]
    first, others = table([row({0: steps})], 120)[2:]
    assert "  step #0    " in first
    assert "  step #1-3  " in others


def test_regions_have_their_own_lines() -> None:
    lines = table([row({0: [read(0, "warm-up", params=1), read(0, "step")]})], 120)
    assert [cells(line)[0] for line in lines[2:]] == ["warm-up", "step"]
    assert "*" not in "".join(lines)


def test_state_on_another_device_has_its_own_line() -> None:
    held = MemoryReading(
        device="cuda:0",
        by_device={"cuda:0": StateBytes(params=7), "cpu": StateBytes(optimizer=9)},
    )
    own, other = table([row({0: [Reading(rank=0, region="step", memory=held)]})], 120)[2:]
    assert cells(own) == ["step", "0", "7", "-", "0", "-", "7"]
    assert cells(other) == ["step", "on", "cpu", "0", "0", "-", "9", "-", "9"]


def test_a_zero_shows_on_the_own_device_and_not_on_another() -> None:
    held = MemoryReading(
        device="cpu", by_device={"cpu": StateBytes(grads=0), "cuda:0": StateBytes(grads=0)}
    )
    line = table([row({0: [Reading(rank=0, region="step", memory=held)]})], 120)[-1]
    assert cells(line) == ["step", "0", "-", "0", "-", "-", "0"]


def test_sizes_are_rounded_where_the_terminal_is_narrow() -> None:
    for width in range(60, 75):
        lines = table([row({0: [read(0)]}, "a.py::one")], width)
        exact = "2,105,344" in lines[2]
        assert exact == (width >= 68), (width, lines)
        assert exact or "2.1 MB" in lines[2]
        assert all(len(line) <= width for line in lines)
