"""A recording against what is now, and the text of what differs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pytest_shardcheck.snapshots import Document, compare, explain, figures_of, merge
from pytest_shardcheck.snapshots.compare import ABSENT
from pytest_shardcheck.snapshots.table import Place, explain_missing
from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading
from pytest_shardcheck.vocabulary.memory import LiveBytes, MemoryReading, StateBytes
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.snapshots import RankSnapshot

PLACE = Place(file="snapshots/test_a/test_x[world2]@cpu.json", nodeid="test_a.py::test_x[world2]")

PLACES = "train.py:10, train.py:11"


def calls(operation, size, modules, phase="backward"):
    return [
        Call(operation=operation, group="1", axes=("dp",), bytes=size, wire_bytes=size,
             phase=phase, module=module, line=f"train.py:{at + 10}")
        for at, module in enumerate(modules)
    ]  # fmt: skip


def reading(rank=0, *, peak=1000, at_peak=None, params=80, called=()):
    live = LiveBytes(start=0, end=0, peak=peak, at_peak=at_peak or {"parameters": peak})
    memory = MemoryReading(
        by_device={"cpu": StateBytes(params=params)}, live_by_device={"cpu": live}
    )
    collectives = CollectivesReading(calls=tuple(called))
    return Reading(rank=rank, region="step", memory=memory, collectives=collectives)


def of_readings(*readings, **rules):
    return [
        RankSnapshot(name="step", rank=r.rank, value=figures_of(r), region="step", **rules)
        for r in readings
    ]


def of_values(*values, **rules):
    return [
        RankSnapshot(name="value", rank=rank, value=value, **rules)
        for rank, value in enumerate(values)
    ]


def recorded(taken, torch="2.13.0"):
    return Document.from_text(Document(torch=torch, snapshots=merge(taken)).to_text(), "file")


def differences(before, now, default=0):
    return compare(recorded(before), now, default)


def shown(before, now, *readings, default=0, torch="2.13.0"):
    mismatches = differences(before, now, default)
    by_rank = {one.rank: [one] for one in readings}
    return explain(mismatches, PLACE, ("2.13.0", torch), by_rank).splitlines()


def test_what_is_as_recorded_matches():
    taken = of_readings(*(reading(rank, called=calls("send", 8, "ab")) for rank in range(3)))
    assert differences(taken, taken) == []
    assert differences(of_values(*"ab"), of_values(*"ab")) == []


def test_a_byte_more_differs_and_a_tolerance_allows_what_it_says():
    before, now = of_readings(reading()), of_readings(reading(peak=1010))
    (mismatch,) = differences(before, now)
    assert {".".join(d.path): (d.recorded, d.now) for d in mismatch.differences} == {
        "memory.peak": (1000, 1010),
        "memory.at_peak.parameters": (1000, 1010),
    }
    assert differences(before, now, Fraction(1, 100)) == []
    assert differences(before, now, 10) == []
    for too_little in (9, Fraction(99, 10000)):
        assert len(differences(before, now, too_little)) == 1
        assert len(differences(now, before, too_little)) == 1
    asked = of_readings(reading(peak=1010), tolerances={"peak": "1/100"})
    (mismatch,) = differences(before, asked)
    assert [d.path[-1] for d in mismatch.differences] == ["parameters"]
    asked = of_readings(reading(peak=1010), exclude=("at_peak",), tolerances={"peak": "10"})
    assert differences(before, asked) == []


def test_no_tolerance_of_bytes_lets_a_call_pass():
    before = of_readings(reading(called=calls("send", 1000, "a" * 200)))
    one_more = of_readings(reading(called=calls("send", 1000, "a" * 201)))
    (mismatch,) = differences(before, one_more, Fraction(1, 10))
    assert [d.path[-1] for d in mismatch.differences] == ["count"]
    # As many calls, each of nearly the payload, are allowed by one.
    near = of_readings(reading(called=calls("send", 1001, "a" * 200)))
    assert differences(before, near, Fraction(1, 100)) == []
    assert len(differences(before, near, 0)) == 1


def test_a_count_may_differ_where_a_field_names_it_and_calls_are_left_out():
    named = {"tolerances": {"collectives": "1/10"}}
    before = of_readings(reading(called=calls("send", 8, "a" * 10)))
    one_more = reading(called=calls("send", 8, "a" * 11))
    (mismatch,) = differences(before, of_readings(one_more, **named))
    assert (mismatch.differences, len(mismatch.calls)) == ((), 1)
    assert differences(before, of_readings(one_more, **named, exclude=("calls",))) == []


def test_calls_that_only_changed_phase_or_payload_are_seen():
    even = [*calls("send", 10, "a"), *calls("send", 10, "b")]
    uneven = [*calls("send", 5, "a"), *calls("send", 15, "b")]
    (mismatch,) = differences(
        of_readings(reading(called=even)), of_readings(reading(called=uneven))
    )
    assert mismatch.differences == ()
    assert [(dict(c.gone), dict(c.new)) for c in mismatch.calls] == [
        ({10: ("a", "b")}, {5: ("a",), 15: ("b",)})
    ]
    forward = calls("send", 10, "ab", phase="forward")
    (mismatch,) = differences(
        of_readings(reading(called=even)), of_readings(reading(called=forward))
    )
    assert mismatch.differences == ()
    assert {c.phase for c in mismatch.calls} == {"forward", "backward"}


def test_a_module_of_another_name_is_no_difference():
    before = of_readings(reading(called=calls("send", 10, ["old"])))
    assert differences(before, of_readings(reading(called=calls("send", 10, ["new"])))) == []


def test_ranks_and_names_that_came_or_went():
    before = of_readings(*map(reading, range(3)))
    (mismatch,) = differences(before, before[:2])
    assert (mismatch.missing_ranks, mismatch.new_ranks) == ((2,), ())
    (mismatch,) = differences(before[:2], before)
    assert (mismatch.missing_ranks, mismatch.new_ranks) == ((), (2,))
    one, two = differences(before, of_values(1))
    assert (one.name, one.unrecorded) == ("value", True)
    assert (two.name, two.untaken) == ("step", True)
    text = "\n".join(shown(before, of_values(1)))
    assert "shardcheck.snapshot('value'): it is not recorded in snapshots/test_a" in text
    assert "shardcheck.snapshot('step'): it is recorded in snapshots/test_a" in text


def test_what_is_not_compared_is_not_missed_in_the_recording():
    before = of_readings(reading())
    assert differences(before, of_readings(reading(peak=5), only=("state",))) == []
    # But what is compared and not recorded is.
    narrow = of_readings(reading(), only=("state",))
    (mismatch,) = differences(narrow, before)
    assert {d.recorded for d in mismatch.differences} == {ABSENT, 0}


@pytest.mark.parametrize(
    ("before", "now"),
    [(1, True), (True, 1), (None, 0), ("1", 1), ([1, 2], [1]), ([1], [2]), ({}, []), (1, {"a": 1}),
     ({"a": None}, {}), (0.1 + 0.2, 0.3)],
)  # fmt: skip
def test_values_that_differ(before, now):
    assert len(differences(of_values(before), of_values(now))) == 1


def test_values_take_the_calls_tolerance_and_not_the_sessions():
    assert differences(of_values(1), of_values(1.0)) == []
    assert len(differences(of_values(100), of_values(101), Fraction(1, 100))) == 1
    assert differences(of_values(100), of_values(101, tolerances={"": "1/100"})) == []
    assert differences(of_values(-100.0), of_values(-101.0, tolerances={"": "1/100"})) == []
    assert len(differences(of_values(100), of_values(102, tolerances={"": "1/100"}))) == 1
    # 0.29 * 100 is below 29 to a float.
    assert differences(of_values(100), of_values(129, tolerances={"": "29/100"})) == []


def test_the_table():
    before = [reading(rank) for rank in range(4)]
    gathered = calls("all_gather", 64, ["l.0", "l.1"])
    now = [
        reading(rank, peak=1000, params=88 + rank // 3, called=gathered,
                at_peak={"gradients": 1000})
        for rank in range(4)
    ]  # fmt: skip
    assert "\n".join(shown(of_readings(*before), of_readings(*now), *now, torch="2.14.0")) == (
        f"""\
shardcheck.snapshot('step'): region 'step' is not as recorded in {PLACE.file}
  ranks  what                                  recorded    now  difference   percent
  0-2    memory.state.params                         80     88          +8   +10.0 %
  3      memory.state.params                         80     89          +9   +11.2 %
  0-3    memory.at_peak.gradients                     0  1,000      +1,000         -
  0-3    memory.at_peak.parameters                1,000      0      -1,000  -100.0 %
  0-3    collectives.dp.all_gather.count              0      2          +2         -
  0-3    collectives.dp.all_gather.bytes              0    128        +128         -
  0-3    collectives.dp.all_gather.wire_bytes         0    128        +128         -
  new on ranks 0-3: all_gather over dp in backward: 2 calls of 64 B by modules l.0, l.1 at {PLACES}
recorded with torch 2.13.0, this is torch 2.14.0
If this is meant, record it: python -m pytest '{PLACE.nodeid}' --snapshot-update"""
    )


def test_only_the_call_that_is_new_is_shown_and_where_it_was_recorded_only_its_module():
    two = reading(called=calls("all_gather", 64, ["l.0", "l.1"]))
    three = reading(called=calls("all_gather", 64, ["l.0", "l.1", "l.2"]))
    lines = shown(of_readings(two), of_readings(three), three)
    new = "  new on rank 0: all_gather over dp in backward: 1 call of 64 B by module l.2"
    assert f"{new} at train.py:12" in lines
    lines = shown(of_readings(three), of_readings(two), two)
    gone = "  gone on rank 0: all_gather over dp in backward: 1 call of 64 B by module l.2"
    assert gone in lines


def test_long_things_are_cut():
    lines = shown(of_values(list(range(100))), of_values([n + 1 for n in range(100)]))
    assert len(lines) == 1 + 1 + 40 + 1 + 2
    assert lines[-3] == "  ... and 60 more"
    text = "\n".join(shown(of_values("a" * 1000), of_values("b" * 1000)))
    assert len(text) < 500
    sizes = [call for size in range(30) for call in calls("send", size, ["m"] * (size + 1))]
    now = reading(called=sizes)
    text = shown(of_readings(reading()), of_readings(now), now)
    assert sum("new on rank 0" in line for line in text) == 5
    assert "  new on rank 0: send over dp in backward: 26 more sizes" in text


def test_a_small_difference_of_a_large_figure_is_not_nothing():
    text = "\n".join(shown(of_values(10_000_000, 1.5), of_values(9_999_999, 1.5000000000000002)))
    assert "-1e-05 %" in text
    assert "1.5  1.5000000000000002" in text


def test_nothing_recorded():
    assert explain_missing(["a", "b"], PLACE) == (
        f"shardcheck.snapshot('a', 'b'): nothing is recorded in {PLACE.file}\n"
        "Record it: python -m pytest 'test_a.py::test_x[world2]' --snapshot-update"
    )
