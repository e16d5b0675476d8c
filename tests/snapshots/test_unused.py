"""Whose a file is: only what is surely nobody's may be called unused, and deleted."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest

from pytest_shardcheck.snapshots.unused import Ownership

HERE, THERE = PurePosixPath("tests/test_a"), PurePosixPath("tests/test_b")


def known(**changes) -> Ownership:
    return Ownership(
        **{
            "collected": {(HERE, "test_x[world2]"), (HERE, "test_y[world2]")},
            "ended": {(HERE, "test_x[world2]"): "cpu"},
            "files": {HERE},
            **changes,
        }
    )


def may_be_unused(ownership, folder, name, *, there=()):
    return ownership.may_be_unused(folder, name, lambda folder: folder in there)


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("test_x[world2]@cpu.json", True),  # its test ended well: if it did not use it, nobody does
        ("test_x[world2]@cuda.json", False),  # another machine's
        ("test_x[world2].json", False),  # recorded with another template of variants
        ("test_y[world2]@cpu.json", False),  # skipped, failed, deselected or not reached
        ("test_gone[world2]@cpu.json", True),
        ("test_gone[world2]@cuda.json", True),  # no such test on any machine
        ("README.md", False),
        (".99-test_gone[world2]@cpu.json", False),
    ],
)
def test_files_of_a_test_file_that_was_collected(name, unused):
    assert may_be_unused(known(), HERE, name) is unused


def test_a_test_file_that_did_not_collect_to_its_end_keeps_everything():
    gone = "test_gone[world2]@cpu.json"
    assert not may_be_unused(known(troubled={HERE}), HERE, gone)
    assert may_be_unused(known(troubled={THERE}), HERE, gone)


def test_a_run_of_some_tests_of_a_file_says_nothing_of_the_others():
    partial = known(partial=True)
    assert not may_be_unused(partial, HERE, "test_gone[world2]@cpu.json")
    assert not may_be_unused(partial, THERE, "test_gone[world2]@cpu.json")
    assert may_be_unused(partial, HERE, "test_x[world2]@cpu.json")


def test_a_test_file_that_was_not_collected_keeps_everything_while_it_is_there():
    gone = "test_z[world2]@cpu.json"
    assert not may_be_unused(known(), THERE, gone, there={THERE})
    assert may_be_unused(known(), THERE, gone)


def test_where_the_variant_can_not_be_known_every_file_stays():
    unknown = known(ended={(HERE, "test_x[world2]"): None})
    for variant in ("@cpu", "@H200", ""):
        assert not may_be_unused(unknown, HERE, f"test_x[world2]{variant}.json")
