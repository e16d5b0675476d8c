"""Fields: how only=, exclude= and tolerance= name them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from pytest_shardcheck.snapshots import parse_rules
from pytest_shardcheck.snapshots.fields import Asked, Rules, leaves, matches, tolerances_from_text
from pytest_shardcheck.snapshots.figures import READING_FIELDS
from pytest_shardcheck.vocabulary.errors import UsageError

VALUE = {
    "memory": {"peak": 9, "at_peak": {"saved activations": 4}},
    "collectives": {"dp": {"all_gather": {"count": 3, "bytes": 8}}},
}
PEAK = ("memory", "peak")
COUNT = ("collectives", "dp", "all_gather", "count")
BYTES = ("collectives", "dp", "all_gather", "bytes")


def rules(only=None, exclude=None, tolerance=None, known=READING_FIELDS) -> Rules:
    return parse_rules(Asked(only, exclude, tolerance), VALUE, known)


@pytest.mark.parametrize(
    ("name", "path", "right"),
    [
        ("peak", PEAK, True),
        ("memory.peak", PEAK, True),
        ("memory", PEAK, True),
        ("peak.memory", PEAK, False),
        ("pea", PEAK, False),
        ("dp.all_gather", COUNT, True),
        ("dp.count", COUNT, False),
        ("peak", (), False),
    ],
)
def test_a_field_is_one_name_on_the_path_or_several_side_by_side(name, path, right):
    assert matches(name, path) is right


def test_a_name_with_dots_of_its_own_is_a_field():
    asked = parse_rules(Asked(tolerance={"0.weight": "1%"}), {"norm": {"0.weight": 1.5}})
    assert asked.tolerance(("norm", "0.weight"), 0) == Fraction(1, 100)
    assert matches("norm.0.weight", ("norm", "0.weight"))
    assert not matches("0", ("norm", "0.weight"))


@pytest.mark.parametrize("name", ["memory.params", "saved.peak", "collectives.count"])
def test_names_of_a_reading_that_never_stand_side_by_side_are_no_field(name):
    with pytest.raises(UsageError, match="there is no such field"):
        rules(only=["peak", name])


def test_only_and_exclude():
    assert rules(only="memory").keeps(PEAK)
    assert not rules(only="memory").keeps(COUNT)
    kept = rules(only=["memory", "dp.all_gather"], exclude=("count", "saved activations"))
    assert [path for path, _ in leaves(VALUE) if kept.keeps(path)] == [PEAK, BYTES]
    # A reading has this field, and this one did not measure it.
    assert rules(exclude="saved").keeps(PEAK)


def test_the_closest_field_wins_and_counts_are_exact_unless_named():
    asked = rules(tolerance={"peak": "1%", "memory": 5, "all_gather": 0.25, "count": 1})
    assert asked.tolerance(PEAK, 0) == Fraction(1, 100)
    assert asked.tolerance(("memory", "at_peak", "saved activations"), 0) == 5
    assert rules(tolerance={"memory.peak": "1%", "peak": 5}).tolerance(PEAK, 0) == Fraction(1, 100)
    assert asked.tolerance(BYTES, 0) == Fraction(1, 4)
    everything = rules(tolerance="10%")
    assert everything.tolerance(BYTES, 0) == Fraction(1, 10)
    assert everything.tolerance(COUNT, Fraction(1)) == 0
    assert rules().tolerance(BYTES, 7) == 7
    assert rules(tolerance={"count": 2}).tolerance(COUNT, 0) == 2
    # A test's own value has no counts of ours.
    assert rules(tolerance="10%", known=()).tolerance(COUNT, 0) == Fraction(1, 10)
    assert parse_rules(Asked(tolerance=1), 5).tolerance((), 0) == 1


def test_tolerances_cross_processes_exactly():
    asked = rules(tolerance={"peak": "0.1%", "memory": "1 kB", "count": 0})
    assert tolerances_from_text(asked.to_text()) == dict(asked.tolerances)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"only": "peek"}, r"only='peek'\): there is no such field \(did you mean 'peak'\?\)"),
        ({"exclude": ["dq"]}, "there are memory.peak, memory.at_peak, collectives.dp"),
        ({"only": 3}, "a field or several expected"),
        ({"only": [3]}, "a field is a str"),
        ({"exclude": {"peak": 1}}, "a field or several expected"),
        ({"tolerance": {"peek": 1}}, r"tolerance='peek'\): there is no such field"),
        ({"tolerance": -1}, "-1 is negative"),
        ({"tolerance": "150%"}, "between nothing and the whole"),
        ({"tolerance": {"peak": "soon"}}, "'soon' is not a size"),
        ({"only": "memory", "exclude": "memory"}, "nothing is left"),
    ],
)
def test_what_is_wrong_is_refused(arguments, said):
    with pytest.raises(UsageError, match=said):
        rules(**arguments)
