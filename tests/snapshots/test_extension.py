"""What we use of syrupy beyond the methods of an extension is still there: a new one fails here."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

syrupy = pytest.importorskip("syrupy")

from syrupy.assertion import AssertionResult, SnapshotAssertion  # noqa: E402
from syrupy.extensions.base import AbstractSyrupyExtension, SnapshotCollectionStorage  # noqa: E402
from syrupy.location import PyTestLocation  # noqa: E402
from syrupy.session import SnapshotSession  # noqa: E402

from pytest_shardcheck.snapshots.extension import FILE, WorldSnapshotExtension  # noqa: E402
from pytest_shardcheck.snapshots.layout import file_name, name_of, stem_of  # noqa: E402


def test_the_session_is_on_the_configuration(pytestconfig):
    assert isinstance(pytestconfig._syrupy, SnapshotSession)
    assert {"update_snapshots", "update_new_snapshots_only"} <= set(vars(pytestconfig.option))
    assert pytestconfig.pluginmanager.hasplugin("syrupy")


def test_an_assertion_is_made_from_a_session_an_extension_and_a_place():
    arguments = inspect.signature(SnapshotAssertion).parameters
    wanted = {
        *("session", "extension_class", "test_location", "update_snapshots"),
        "update_new_snapshots_only",
    }
    assert wanted <= set(arguments)
    assert isinstance(SnapshotAssertion.executions, property)
    assert callable(SnapshotAssertion._assert)
    assert {"created", "updated", "success", "exception", "recalled_data"} <= set(
        AssertionResult.__dataclass_fields__
    )


def test_every_method_that_we_write_anew_is_one_of_an_extension():
    ours = {
        name: method
        for name, method in vars(WorldSnapshotExtension).items()
        if not name.startswith("_") and name not in ("file_extension", "matched")
    }
    for name, method in ours.items():
        if name == "discovery_dirname" and not hasattr(AbstractSyrupyExtension, name):
            continue  # syrupy 7 has it, and Python 3.10 only 6.1
        assert hasattr(AbstractSyrupyExtension, name), name
        function = getattr(method, "__func__", method)
        if not callable(function):
            continue
        theirs = inspect.signature(getattr(AbstractSyrupyExtension, name)).parameters
        mine = inspect.signature(function).parameters
        if any(p.kind is p.VAR_KEYWORD for p in mine.values()):
            continue
        assert set(theirs) - {"self", "cls"} <= set(mine), name
    assert "write_immediately" in vars(SnapshotCollectionStorage)


def test_a_file_is_claimed_by_the_tests_of_its_test_file_alone():
    class Location:
        nodeid = "tests/sub/test_a.py::test_x[world2]"

    def claims(file):
        return WorldSnapshotExtension.matches_test_location(
            test_location=Location, snapshot_location=file
        )

    assert claims("/p/snapshots/tests/sub/test_a/test_y[world2]@cpu.json")
    assert not claims("/p/snapshots/tests/sub/test_ab/test_y[world2]@cpu.json")
    assert not claims("/p/snapshots/sub/test_a/test_y[world2]@cpu.json")


def test_syrupys_name_of_a_test_says_its_class_and_parameters():
    def test_x():
        pass

    item = SimpleNamespace(
        nodeid="t/test_a.py::TestC::test_x[a-world2]", name="test_x[a-world2]",
        path=Path("t/test_a.py"), obj=test_x,
    )  # fmt: skip
    location = PyTestLocation(item)
    assert location.snapshot_name == "TestC.test_x[a-world2]"
    item.stash = {
        FILE: Path("snapshots/t/test_a", file_name(stem_of(location.snapshot_name), "cpu"))
    }
    name = WorldSnapshotExtension.get_snapshot_name(test_location=location)
    assert name == "TestC.test_x[a-world2]"
    assert location.matches_snapshot_name(name)
    assert name_of(item.nodeid, item.name) == location.snapshot_name
    item.nodeid = "t/test_a.py::test_x[a-world2]"
    assert name_of(item.nodeid, item.name) == PyTestLocation(item).snapshot_name
