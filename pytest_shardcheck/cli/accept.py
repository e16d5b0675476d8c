"""`shardcheck accept`: take over the snapshots of a CI run, for a laptop without such a machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.snapshots import Document
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.files import write_whole
from pytest_shardcheck.vocabulary.snapshots import SnapshotRecord
from pytest_shardcheck.vocabulary.units import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

NAME: Final = "accept"
HELP: Final = "write the snapshots of a CI run from its JSON (pytest --shardcheck-json)"

_DIFFERENT: Final = ("different", "missing")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("report", type=Path, help="the JSON that --shardcheck-json wrote")
    parser.add_argument(
        "--only-failing",
        action="store_true",
        help="only those that were not as recorded, or not recorded",
    )
    parser.add_argument(
        "--rootdir", type=Path, default=Path(), help="pytest's rootdir (default: this directory)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files; all are checked before the first is written.

    Raises:
        UsageError: The JSON is none of ours, holds no snapshot, or is of another project.
    """
    records = snapshots_in(_loaded(arguments.report), arguments.report, arguments.rootdir)
    files = documents(records, only_failing=arguments.only_failing)
    for file, document in files.items():
        try:
            write_whole(arguments.rootdir / file, document.to_text())
        except OSError as error:
            raise UsageError(f"{file}: it can't be written: {error}") from error
        sys.stdout.write(f"{file}\n")
    count = len(files)
    sys.stdout.write(f"{counted(count, 'file')} written\n")
    return 0


def snapshots_in(report: Mapping[str, Any], path: Path, root: Path) -> list[SnapshotRecord]:
    """Return the snapshots of the worlds that ended well.

    Raises:
        UsageError: There is none, or one is of another project.
    """
    records = []
    for test in report["tests"]:
        for data in test.get("snapshots", ()):
            record = _record(data, path)
            _check_place(record.file, str(test["nodeid"]), root)
            records.append(record)
    if not records:
        raise UsageError(
            f"{path}: no test of this run took a snapshot and ended well; expected tests that call "
            "shardcheck.snapshot(...)"
        )
    return records


def documents(records: Iterable[SnapshotRecord], *, only_failing: bool) -> dict[str, Document]:
    """Return the files that the records make, by path from rootdir."""
    by_file: dict[str, list[SnapshotRecord]] = {}
    for record in records:
        by_file.setdefault(record.file, []).append(record)
    return {
        file: Document(torch=its[0].torch, snapshots={r.name: r.ranks for r in its if r.ranks})
        for file, its in sorted(by_file.items())
        if not only_failing or _failed(its)
    }


def _failed(records: Sequence[SnapshotRecord]) -> bool:
    return any(record.outcome in _DIFFERENT for record in records)


def _loaded(path: Path) -> dict[str, Any]:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: it can't be read: {error}") from error
    except ValueError as error:
        raise UsageError(f"{path}: JSON is expected: {error}") from error
    if not isinstance(report, dict) or not isinstance(report.get("tests"), list):
        raise UsageError(f"{path}: the JSON of `pytest --shardcheck-json=PATH` is expected")
    return report


def _record(data: Any, path: Path) -> SnapshotRecord:
    try:
        record = SnapshotRecord.from_json(data)
        Document.from_text(Document(torch="", snapshots={"": record.ranks}).to_text(), "")
    except (TypeError, KeyError, AttributeError, ValueError, UsageError) as error:
        raise UsageError(
            f"{path}: a snapshot in it can't be read ({error}): install the version of "
            "pytest-shardcheck that wrote it"
        ) from error
    return record


def _check_place(file: str, nodeid: str, root: Path) -> None:
    """Refuse to write anywhere but below the project that was tested."""
    place = PurePosixPath(file)
    test_file = nodeid.partition("::")[0]
    if place.is_absolute() or ".." in place.parts or place.suffix != ".json":
        raise UsageError(f"{file!r} is no place for a snapshot: a .json below rootdir is expected")
    if not (root / test_file).is_file():
        raise UsageError(
            f"{test_file} was tested, and is not in {root.resolve().name or root}: run this in "
            "pytest's rootdir, or give it as --rootdir"
        )
