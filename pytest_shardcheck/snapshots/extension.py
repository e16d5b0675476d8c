"""The syrupy extension: a test's file of snapshots in syrupy's own session, report and options.

The only module that imports syrupy. What it uses of syrupy beyond the extension's documented
methods (`config._syrupy`, `SnapshotAssertion`) a test names, so that a new version fails there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.data import Snapshot, SnapshotCollection, SnapshotCollections
from syrupy.extensions.base import AbstractSyrupyExtension
from syrupy.location import PyTestLocation

from pytest_shardcheck.snapshots.layout import folder_of, split_file_name
from pytest_shardcheck.vocabulary.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_shardcheck.vocabulary.snapshots import SnapshotOutcome


class Files(Protocol):
    """What the session knows of the files of snapshots."""

    @property
    def directory(self) -> Path:
        """Return where all of them lie."""

    def discovered(self) -> Iterable[Path]:
        """Return those that are unused if no test of this session used them."""


# On a configuration, and on an item: its own file.
FILES: Final = pytest.StashKey[Files]()
FILE: Final = pytest.StashKey[Path]()


class WorldSnapshotExtension(AbstractSyrupyExtension):
    """One JSON file a test, below one directory; syrupy's name of a snapshot is the test's.

    What is asserted is a file's whole text. Whether it matches is decided by whoever asserts, who
    knows the tolerances.
    """

    file_extension = "json"
    write_immediately = True  # a world's snapshot is written when its world has ended
    matched = False

    def serialize(self, data: Any, **_: Any) -> Any:
        """Return the text as it is."""
        return data

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        """Return what was decided."""
        return self.matched

    @classmethod
    def get_snapshot_name(cls, *, test_location: PyTestLocation, index: Any = 0) -> str:
        """Return the name under which the report counts it."""
        split = split_file_name(test_location.item.stash[FILE].name)
        assert split is not None, "the file of a test is one of ours"
        return split[0]

    @classmethod
    def get_location(cls, *, test_location: PyTestLocation, index: Any) -> str:
        """Return the file of the test."""
        return str(test_location.item.stash[FILE])

    @classmethod
    def dirname(cls, *, test_location: PyTestLocation) -> str:
        """Return the folder of the test file's snapshots."""
        directory = test_location.item.config.stash[FILES].directory
        return str(directory / folder_of(test_location.item.nodeid))

    @classmethod
    def discovery_dirname(cls, *, test_location: PyTestLocation) -> str:
        """Return the directory of all: what deleted test files left is there, too."""
        return str(test_location.item.config.stash[FILES].directory)

    @classmethod
    def matches_test_location(
        cls, *, test_location: PyTestLocation, snapshot_location: str
    ) -> bool:
        """Tell whether a file is of a test's file; the controller of xdist knows no directory."""
        folder = folder_of(test_location.nodeid).parts
        return PurePath(snapshot_location).parent.parts[-len(folder) :] == folder

    def discover_snapshots(
        self, *, test_location: PyTestLocation, ignore_extensions: list[str] | None = None
    ) -> SnapshotCollections:
        """Return what may be unused."""
        found = SnapshotCollections()
        for path in test_location.item.config.stash[FILES].discovered():
            if path.suffix.removeprefix(".") not in (ignore_extensions or ()):
                found.add(self.read_snapshot_collection(snapshot_location=str(path)))
        return found

    def read_snapshot_collection(self, *, snapshot_location: str) -> SnapshotCollection:
        """Return the one snapshot of a file."""
        collection = SnapshotCollection(location=snapshot_location)
        split = split_file_name(PurePath(snapshot_location).name)
        if split is not None:
            collection.add(Snapshot(name=split[0]))
        return collection

    def read_snapshot_data_from_location(
        self, *, snapshot_location: str, snapshot_name: str, session_id: str
    ) -> str | None:
        """Return the text of a file; None where there is none."""
        try:
            return Path(snapshot_location).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    @classmethod
    def write_snapshot_collection(
        cls, *, snapshot_collection: SnapshotCollection, **_: Any
    ) -> None:
        """Write a file whole or not at all."""
        (snapshot,) = snapshot_collection
        write_whole(Path(snapshot_collection.location), str(snapshot.data))

    def delete_snapshots(self, *, snapshot_location: str, snapshot_names: set[str]) -> None:
        """Delete an unused file, and its folder if it was the last."""
        path = Path(snapshot_location)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def take_part(item: pytest.Item) -> SnapshotAssertion:
    """Have syrupy look for unused files, also where no test takes a snapshot any more."""
    option = item.config.option
    return SnapshotAssertion(
        session=item.config._syrupy,  # type: ignore[attr-defined]  # no public way
        extension_class=WorldSnapshotExtension,
        test_location=PyTestLocation(item),
        update_snapshots=option.update_snapshots,
        update_new_snapshots_only=option.update_new_snapshots_only,
    )


def would_write(item: pytest.Item, *, recorded: bool) -> bool:
    """Tell whether syrupy was asked to write what differs, or what is not `recorded` yet."""
    option = item.config.option
    return bool(option.update_snapshots or (option.update_new_snapshots_only and not recorded))


def settle(item: pytest.Item, text: str, *, matched: bool) -> SnapshotOutcome:
    """Have syrupy count a test's snapshots, and write them where it was asked to.

    Raises:
        OSError: The file can't be written.
    """
    assertion = take_part(item)
    extension = assertion.extension
    assert isinstance(extension, WorldSnapshotExtension)
    extension.matched = matched
    assertion._assert(text)  # what == does, whose value is no outcome
    (result,) = assertion.executions.values()
    if result.exception is not None:
        raise result.exception
    if result.created:
        return "created"
    if result.updated:
        return "updated"
    if result.success:
        return "matched"
    return "missing" if result.recalled_data is None else "different"
