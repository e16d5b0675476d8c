from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from made import reading, record

from pytest_shardcheck.reports.comparison import compare
from pytest_shardcheck.reports.comparison_text import as_markdown, as_text
from pytest_shardcheck.reports.recording import Recording
from pytest_shardcheck.vocabulary import LiveBytes, MemoryReading, Reading
from pytest_shardcheck.vocabulary.collectives import CollectivesReading
from pytest_shardcheck.vocabulary.saved import SavedReading

LIVE = (100, 100, 1000)


def step(rank=0, **more):
    return reading(rank, **{"state": {"params": 10}, "live": LIVE, **more})


def ran(*readings, nodeid="a.py::test[world2]", **more):
    return record(readings, nodeid, **more)


def compared(before, after, tolerance=0, **of_after):
    before, after = (its if isinstance(its, list) else [its] for its in (before, after))
    return compare(
        Recording(tests=tuple(before)),
        Recording(tests=tuple(after), **of_after),
        Fraction(tolerance),
    )


def words(changes):
    return [(c.region, c.ranks, c.figure, c.before, c.after) for c in changes]


def test_equal_runs_pass():
    its = compared(ran(step(0), step(1)), ran(step(0), step(1)))
    assert (its.worse, its.better, its.lost, its.close, its.new) == ((), (), (), 0, 0)
    assert its.equal == 6  # peak, live, growth, state, params, wire bytes
    assert its.passes(strict=True)


def test_more_is_worse_and_less_is_better():
    before = ran(step(calls={"all_gather": (16, 8)}, saved=50))
    after = ran(
        step(
            calls={"all_gather": (8, 8), "barrier": (1, 0)},
            live=(100, 90, 1001),
            saved=49,
        )
    )
    its = compared(before, after)
    assert words(its.worse) == [
        ("step", (0,), "peak", 1000, 1001),
        ("step", (0,), "barrier calls", 0, 1),
    ]
    assert words(its.better) == [
        ("step", (0,), "live", 100, 90),
        ("step", (0,), "growth", 0, -10),
        ("step", (0,), "all_gather calls", 16, 8),
        ("step", (0,), "wire bytes", 128, 64),
        ("step", (0,), "saved activations", 50, 49),
    ]
    assert not its.passes(strict=False)
    back = compared(after, before)
    assert words(back.better) == [(*c[:3], c[4], c[3]) for c in words(its.worse)]
    assert len(back.worse) == 5


@pytest.mark.parametrize(
    ("after", "tolerance", "where"),
    [
        (1010, "1/100", "close"),
        (1011, "1/100", "worse"),
        (990, "1/100", "close"),
        (989, "1/100", "better"),
        (1000, "1/100", "equal"),
        (1001, "0", "worse"),
    ],
)
def test_a_tolerance_is_a_share_of_what_was(after, tolerance, where):
    its = compared(ran(step()), ran(step(live=(100, 100, after))), tolerance)
    counts = (len(its.worse), len(its.better), its.close, its.equal - 5)
    sorted_into = dict(zip(("worse", "better", "close", "equal"), counts, strict=True))
    assert sorted_into == {**dict.fromkeys(sorted_into, 0), where: 1}
    assert its.passes(strict=True) == (where != "worse")


@pytest.mark.parametrize(
    "unseen", [SavedReading(unseen=("torch.func.grad",)), SavedReading(backward=True)]
)
def test_saved_activations_that_no_hook_could_see_are_lost_and_not_better(unseen):
    its = compared(ran(step(saved=50)), ran(replace(step(), saved=unseen)))
    assert words(its.lost) == [("step", (0,), "saved activations", 50, None)]
    assert (its.better, its.passes(strict=False)) == ((), False)


def test_what_came_from_nothing_is_worse_whatever_the_tolerance():
    its = compared(ran(step(saved=0)), ran(step(saved=1)), 100)
    assert words(its.worse) == [("step", (0,), "saved activations", 0, 1)]


def test_equal_ranks_and_equal_occurrences_are_one_change():
    def steps(peak):
        return [
            step(rank, occurrence=number, live=(100, 100, peak if number else 900))
            for rank in range(4)
            for number in range(3)
        ]

    its = compared(ran(*steps(1000)), ran(*steps(1100)))
    assert words(its.worse) == [("step #1-2", (0, 1, 2, 3), "peak", 1000, 1100)]


def test_ranks_that_differ_are_told_apart():
    its = compared(
        ran(step(0), step(1), step(2)),
        ran(step(0, live=(100, 100, 1002)), step(1, live=(100, 100, 1001)), step(2)),
    )
    assert words(its.worse) == [
        ("step", (0,), "peak", 1000, 1002),
        ("step", (1,), "peak", 1000, 1001),
    ]


def test_what_is_measured_no_more_did_not_get_better():
    everything = ran(step(0), step(1))
    for after in (
        ran(outcome="failed"),
        ran(outcome="skipped"),
        ran(step(0, region="other"), step(1, region="other")),
    ):
        its = compared(everything, after)
        assert [change.figure for change in its.lost] == [
            "peak", "live", "growth", "state", "params", "wire bytes",
        ]  # fmt: skip
        assert not its.passes(strict=False)
    its = compared(everything, ran(step(0)))
    assert {change.ranks for change in its.lost} == {(1,)}


def test_a_figure_is_lost_alone():
    unmeasured = reading(0, state={"params": 10})
    its = compared(ran(step()), ran(unmeasured))
    assert [change.figure for change in its.lost] == ["peak", "live", "growth"]
    assert not its.passes(strict=False)
    its = compared(ran(unmeasured), ran(step()))
    assert its.new == 3
    assert its.passes(strict=True)


def test_calls_that_could_not_be_counted_are_no_zero():
    memory = MemoryReading(live_by_device={"cpu": LiveBytes(start=0, end=0, peak=1)})
    unknown = Reading(
        rank=0, region="step", memory=memory, collectives=CollectivesReading(unknown=("c10d.x",))
    )
    known = Reading(
        rank=0,
        region="step",
        memory=memory,
        collectives=step(calls={"send": (1, 8)}).collectives,
    )
    its = compared(ran(known), ran(unknown))
    assert words(its.lost) == [
        ("step", (0,), "send calls", 1, None),
        ("step", (0,), "wire bytes", 8, None),
    ]
    its = compared(ran(unknown), ran(known))
    assert (its.new, its.worse) == (2, ())


def test_memory_on_another_device_is_compared_under_its_name():
    def cuda(peak):
        live = {
            "cuda:0": LiveBytes(start=0, end=0, peak=5),
            "cpu": LiveBytes(start=0, end=0, peak=peak),
        }
        memory = MemoryReading(
            device="cuda:0", live_by_device=live, reserved_by_device={"cuda:0": peak}
        )
        return ran(Reading(rank=0, region="step", memory=memory))

    assert words(compared(cuda(6), cuda(7)).worse) == [
        ("step", (0,), "reserved", 6, 7),
        ("step", (0,), "peak on cpu", 6, 7),
    ]


def test_tests_that_only_one_has_are_listed_and_fail_strictly():
    one, other = ran(step(), nodeid="a.py::one"), ran(step(), nodeid="a.py::other")
    its = compared([one, other], [one])
    assert (its.only_before, its.only_after, its.common) == (("a.py::other",), (), 1)
    assert (its.passes(strict=False), its.passes(strict=True)) == (True, False)
    its = compared([one], [one, other])
    assert (its.only_before, its.only_after) == ((), ("a.py::other",))
    assert its.passes(strict=True)


def test_an_incomplete_run_shows_nothing():
    its = compared(ran(step()), ran(step()), incomplete="interrupted")
    assert not its.passes(strict=False)
    assert "The run after is incomplete (interrupted)" in as_text(its, "0%")
    # What was missing before can't hide that something got worse.
    before = Recording(tests=(ran(step()),), incomplete="interrupted")
    assert compare(before, Recording(tests=before.tests), Fraction(0)).passes(strict=True)


ODD = "a.py::test[a|b`c`-<x>-world2]"
BEFORE = Recording(
    environment={"torch": "2.12.1", "python": "3.11.7"},
    tests=(
        ran(
            *(step(rank, live=(0, 0, 5_131_344), calls={"all_gather": (16, 8)}) for rank in (0, 1))
        ),
        ran(step(1), nodeid=ODD),
        ran(step(), nodeid="a.py::gone"),
    ),
)
AFTER = Recording(
    environment={"torch": "2.13.0", "python": "3.11.7"},
    tests=(
        ran(
            *(step(rank, live=(0, 0, 6_051_912), calls={"all_gather": (8, 8)}) for rank in (0, 1)),
            outcome="failed",
        ),
        ran(step(1, saved=3, live=None), nodeid=ODD),
        ran(step(), nodeid="a.py::new"),
    ),
)


def test_the_text():
    assert as_text(compare(BEFORE, AFTER, Fraction(0)), "0%").splitlines() == [
        "torch: 2.12.1 before, 2.13.0 after",
        "Worse",
        "  region  ranks  figure                 before        after   change",
        "a.py::test[world2] (failed now)",
        "  step    0-1    peak              5,131,344 B  6,051,912 B  +17.9 %",
        "",
        "Measured no more",
        "  region  ranks  figure                 before        after   change",
        f"{ODD}",
        "  step    1      peak                  1,000 B            -     lost",
        "  step    1      live                    100 B            -     lost",
        "  step    1      growth                    0 B            -     lost",
        "",
        "Better",
        "  region  ranks  figure                 before        after   change",
        "a.py::test[world2] (failed now)",
        "  step    0-1    all_gather calls           16            8  -50.0 %",
        "  step    0-1    wire bytes              128 B         64 B  -50.0 %",
        "",
        "Only before (1)",
        "  a.py::gone",
        "",
        "Only after (1)",
        "  a.py::new",
        "",
        "1 worse, 3 measured no more, 2 better, 1 new, 7 equal; figures of 2 tests",
    ]


def test_the_markdown():
    text = as_markdown(compare(BEFORE, AFTER, Fraction(0)), "0%")
    lines = text.splitlines()
    assert lines[0].startswith("**shardcheck: 1 worse, 3 measured no more, 2 better")
    assert "<details open><summary>Worse</summary>" in lines
    assert "<details><summary>Better</summary>" in lines
    assert (
        "| `a.py::test[world2]` | step | 0-1 | peak | 5,131,344 B | 6,051,912 B | +17.9 % |"
        in lines
    )
    odd = "``a.py::test[a\\|b`c`-<x>-world2]``"
    assert f"| {odd} | step | 1 | peak | 1,000 B | - | lost |" in lines
    assert "|  | step | 1 | live | 100 B | - | lost |" in lines
    assert text.count("<details") == text.count("</details>") == 5


def test_a_small_change_of_a_large_figure_is_no_zero():
    its = compared(ran(step(live=(0, 0, 10**9))), ran(step(live=(0, 0, 10**9 + 4))))
    assert " +4\n" in as_text(its, "0%")


def test_a_comment_that_github_would_refuse_is_cut():
    def many(peak):
        return [
            ran(step(live=(100, 100, peak)), nodeid=f"a.py::test_{'x' * 80}[{number}]")
            for number in range(1000)
        ]

    text = as_markdown(compared(many(1000), many(1001)), "0%")
    assert len(text) < 65_536
    assert text.count("<details") == text.count("</details>") == 1
    assert "lines left out" in text.splitlines()[-1]
    assert text.startswith("**shardcheck: 1,000 worse")


def test_long_lists_of_tests_are_cut():
    its = compared([ran(nodeid=f"a.py::test_{n}") for n in range(25)], [])
    for text in (as_text(its, "0%"), as_markdown(its, "0%")):
        assert "Only before (25)" in text
        assert "and 5 more" in text
        assert "test_20" not in text
