from __future__ import annotations

import pytest
from made import M8, NODE, ceiling, reading, record

from pytest_shardcheck.reports import table
from pytest_shardcheck.vocabulary import LiveBytes, MemoryReading, Reading, StateBytes
from pytest_shardcheck.vocabulary.collectives import CollectivesReading

LIVE = (4_210_760, 4_210_760, 5_131_344)
CALLS = {"all_gather": (16, 131_584), "reduce_scatter": (8, 131_584)}


def full(rank: int, **more):
    return reading(rank, **{"live": LIVE, "calls": CALLS, "saved": 262_144, **more})


def lines(records, width=99):
    return ["".join(text for text, _ in line) for line in table(records, width)]


def row(*readings, nodeid: str = NODE, **more):
    return record(readings, nodeid, **more)


def cells(line: str) -> list[str]:
    return line.split()


def test_equal_ranks_share_a_line():
    assert lines([row(reading(0), reading(1), nodeid="tests/test_s.py::test_ddp")]) == [
        "  region  ranks     params      grads  optimizer  buffers      state  calls  wire",
        "tests/test_s.py::test_ddp",
        "  step    0-1    2,105,344  2,105,344  4,210,752        0  8,421,440      0     0",
    ]


def test_all_figures_stand_beside_each_other_where_there_is_room():
    verdicts = (ceiling({0: LIVE[2], 1: LIVE[2]}, 5_200_000),)
    its = lines([row(full(0), full(1), verdicts=verdicts)], 160)
    assert cells(its[0])[2:] == [
        "params", "grads", "optimizer", "buffers", "state", "live", "peak", "ceiling", "calls",
        "wire", "saved",
    ]  # fmt: skip
    assert its[2].endswith("5,131,344  98.6 % of 5,200,000     24  3,158,016  262,144")


@pytest.mark.parametrize(
    ("peak", "limit", "share", "colour"),
    [
        (80, 100, "80.0 %", "green"),
        (95, 100, "95.0 %", "green"),
        (951, 1000, "95.1 %", "yellow"),
        (100, 100, "100.0 %", "yellow"),
        (99_999, 100_000, "99.9 %", "yellow"),  # rounded, it would seem to be reached
        (100_001, 100_000, "100.1 %", "red"),  # rounded, it would seem to be kept
        (0, 0, "100.0 %", "green"),
        (1, 0, "more", "red"),
    ],
)
def test_a_peak_is_held_against_its_ceiling(peak, limit, share, colour):
    its = row(reading(0, live=(0, 0, peak)), verdicts=(ceiling({0: peak}, limit),))
    (shown,) = [part for part in table([its], 200)[-1] if part[0].strip().startswith(share)]
    assert shown == (f"{share} of {limit:,}", colour)


def test_of_several_ceilings_the_lowest_counts_and_of_a_phase_none():
    verdicts = (
        ceiling({0: 50}, 100),
        ceiling({0: 50}, 80, narrowing="rank=0, region='step'"),
        ceiling({0: 50}, 55, narrowing="phase='forward'"),
        ceiling({0: 50}, 56, narrowing="rank=0, device='cuda'"),
        ceiling({0: 50}, 57, argument="state"),
        ceiling({0: 50}, 58, marker="memory"),
        ceiling({0: 50}, 59, region="warm-up"),
        ceiling({0: 50}, 60, occurrence=1),
        ceiling({1: 50}, 61),
    )
    its = row(reading(0, live=(0, 0, 50)), verdicts=verdicts)
    assert "62.5 % of 80" in lines([its], 200)[-1]


def test_the_order_in_which_ranks_answered_does_not_show():
    one, other = reading(0), reading(1, state={**M8, "params": 3})
    assert lines([row(other, one)]) == lines([row(one, other)])


def test_each_test_has_its_name_above_its_lines_and_its_outcome_where_it_did_not_pass():
    records = [
        row(reading(0), nodeid="a.py::one"),
        row(reading(0, "a"), reading(0, "b"), nodeid="a.py::two", outcome="failed"),
        row(reading(0), nodeid="a.py::three", outcome="xfailed"),
    ]
    its = [line for line in lines(records) if "0" not in line][1:]
    assert its == ["a.py::one", "a.py::two FAILED", "a.py::three XFAILED"]
    colours = [part[1] for line in table(records, 99) for part in line if "FAILED" in part[0]]
    assert colours == ["red", "yellow"]


def test_the_ranks_with_the_highest_peak_are_marked():
    its = row(full(0), full(1, live=(0, 0, 9_000_000)), full(2))
    first, second = table([its], 200)[2:]
    assert ("0, 2", "") in first
    assert ("1*", "bold") in second


def test_without_a_peak_those_with_the_largest_state_are_marked():
    small = reading(1, state={**M8, "grads": 1})
    marked = [cells(line)[1:3] for line in lines([row(reading(0), small, reading(2))])[2:]]
    assert marked == [["0,", "2*"], ["1", "2,105,344"]]


def test_no_rank_is_marked_where_all_are_equal_or_where_only_occurrences_differ():
    assert "*" not in "".join(lines([row(full(0), full(1))]))
    steps = [full(rank, occurrence=n, live=(0, 0, 7 + n)) for rank in (0, 1) for n in (0, 1)]
    assert "*" not in "".join(lines([row(*steps)], 200))


def test_what_was_not_measured_is_a_dash_and_a_column_of_dashes_is_left_out():
    watched = reading(0, state={"params": 5, "grads": 0})
    header, _, line = lines([row(watched)])
    assert cells(header)[2:] == ["params", "grads", "state", "calls", "wire"]
    assert cells(line)[2:] == ["5", "0", "5", "0", "0"]
    header, *_, line = lines([row(watched), row(full(0))], 200)
    assert "optimizer" in header
    other = lines([row(watched), row(full(0))], 200)[2]
    assert cells(other)[2:] == ["5", "0", "-", "-", "5", "-", "-", "0", "0", "-"]


def test_calls_that_can_not_be_counted_are_no_zero():
    unknown = Reading(
        rank=0,
        region="step",
        memory=MemoryReading(by_device={"cpu": StateBytes(params=1)}),
        collectives=CollectivesReading(unknown=("c10d.new",)),
    )
    assert cells(lines([row(unknown), row(reading(0))])[2])[-2:] == ["-", "-"]


def test_nothing_measured_is_no_table():
    empty = Reading(rank=0, region="test", implicit=True, memory=MemoryReading(device="cpu"))
    assert table([], 120) == []
    assert table([row(empty)], 120) == []
    its = lines([row(empty, nodeid="a.py::none"), row(reading(0), nodeid="a.py::some")])
    assert [cells(line)[0] for line in its[1:]] == ["a.py::some", "step"]


def test_equal_occurrences_share_a_line():
    steps = [reading(0, occurrence=n, state={"params": 1 if n == 0 else 2}) for n in range(4)]
    first, others = lines([row(*steps)])[2:]
    assert "  step #0    " in first
    assert "  step #1-3  " in others


def test_regions_have_their_own_lines():
    its = lines([row(reading(0, "warm-up", state={"params": 1}), reading(0, "step"))])
    assert [cells(line)[0] for line in its[2:]] == ["warm-up", "step"]
    assert "*" not in "".join(its)


def test_memory_on_another_device_has_its_own_line():
    held = MemoryReading(
        device="cuda:0",
        by_device={"cuda:0": StateBytes(params=7), "cpu": StateBytes(optimizer=9)},
        live_by_device={
            "cuda:0": LiveBytes(start=0, end=8, peak=9),
            "cpu": LiveBytes(start=0, end=10, peak=11),
        },
    )
    own, other = lines([row(Reading(rank=0, region="step", memory=held))])[2:]
    assert cells(own) == ["step", "0", "7", "0", "7", "8", "9", "0", "0"]
    assert cells(other) == ["step", "on", "cpu", "0", "0", "9", "9", "10", "11", "-", "-"]


def test_a_zero_shows_on_the_own_device_and_not_on_another():
    held = MemoryReading(
        device="cpu", by_device={"cpu": StateBytes(grads=0), "cuda:0": StateBytes(grads=0)}
    )
    its = lines([row(Reading(rank=0, region="step", memory=held))])
    assert cells(its[-1]) == ["step", "0", "0", "0", "0", "0"]
    assert len(its) == 3


def test_it_fits_whatever_the_width():
    verdicts = (ceiling({0: LIVE[2], 1: LIVE[2]}, 5_200_000),)
    records = [row(full(0), full(1), nodeid="a.py::one", verdicts=verdicts)]
    seen = {}
    for width in range(24, 170):
        its = lines(records, width)
        assert all(len(line) <= width for line in its), (width, its)
        text = "\n".join(its)
        kind = (
            "exact" if "5,131,344" in text
            else "categories" if "2.1 MB" in text
            else "rounded" if "region" in text
            else "stacked" if "  state  " in text
            else "sentences"
        )  # fmt: skip
        assert ("params" in text) == (kind in ("exact", "categories"))
        # However narrow, no figure is lost.
        for figure in ("98.6 %", "24") if kind == "exact" else ("8.4 MB", "4.2 MB", "5.1 MB"):
            assert figure in text
        seen.setdefault(kind, []).append(width)
    assert list(seen) == ["sentences", "stacked", "rounded", "categories", "exact"]
    assert 80 in seen["rounded"]
    assert 120 in seen["categories"]


def test_long_names_and_many_ranks_stand_above_their_figures():
    name = "the-region-of-the-whole-training-step"
    its = [row(*(full(rank, region=name, saved=rank % 2) for rank in range(4)), nodeid="a.py::one")]
    assert lines(its, 80) == [
        "   state    live    peak  calls    wire  saved",
        "a.py::one",
        "  the-region-of-the-whole-training-step, ranks 0, 2",
        "  8.4 MB  4.2 MB  5.1 MB     24  3.2 MB    0 B",
        "  the-region-of-the-whole-training-step, ranks 1, 3",
        "  8.4 MB  4.2 MB  5.1 MB     24  3.2 MB    1 B",
    ]


def test_a_sentence_keeps_its_figures_together_and_its_star():
    its = row(full(0), full(1, live=(0, 0, 9_000_000)), nodeid="a.py::one")
    assert lines([its], 40) == [
        "a.py::one",
        "  step, rank 0: state 8.4 MB,",
        "    live 4.2 MB, peak 5.1 MB, calls 24,",
        "    wire 3.2 MB, saved 262.1 kB",
        "  step, rank 1*: state 8.4 MB, live 0 B,",
        "    peak 9.0 MB, calls 24, wire 3.2 MB,",
        "    saved 262.1 kB",
    ]
