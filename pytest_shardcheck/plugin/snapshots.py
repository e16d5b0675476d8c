"""Snapshots in the session: all ranks' together held against a file, through syrupy's own session.

Loading this imports neither syrupy nor our rooms: it is loaded where syrupy is, with or without
world tests.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_shardcheck.worlds.keys import NODEID, SPEC

if TYPE_CHECKING:
    from pytest_shardcheck.plugin.settings import Settings
    from pytest_shardcheck.snapshots import Document
    from pytest_shardcheck.snapshots.unused import Ownership
    from pytest_shardcheck.vocabulary.readings import Reading
    from pytest_shardcheck.vocabulary.snapshots import (
        RankSnapshot,
        SnapshotOutcome,
        SnapshotRecord,
    )

KEEPER: Final[pytest.StashKey[SnapshotKeeper]] = pytest.StashKey()
_PLUGIN: Final = "syrupy"
_CUDA_TOLERANCE: Final = Fraction(1, 100)


def why_none(config: pytest.Config) -> str:
    """Return why there are no snapshots, and what to do about it; nothing where there are."""
    if config.pluginmanager.hasplugin(_PLUGIN):
        return ""
    if config.pluginmanager.is_blocked(_PLUGIN):
        return "syrupy, which keeps snapshots, is switched off; leave out `-p no:syrupy`"
    if find_spec(_PLUGIN) is not None:
        return (
            "syrupy, which keeps snapshots, is not loaded (PYTEST_DISABLE_PLUGIN_AUTOLOAD is set); "
            "add `-p syrupy`"
        )
    return (
        "snapshots are kept by syrupy, which is not installed: "
        "pip install 'pytest-shardcheck[snapshots]'"
    )


def register_keeper(config: pytest.Config, settings: Settings) -> None:
    """Keep snapshots in this session, if syrupy is there."""
    if config.pluginmanager.hasplugin(_PLUGIN):
        keeper = config.stash[KEEPER] = SnapshotKeeper(config, settings)
        config.pluginmanager.register(keeper, "shardcheck-snapshots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one world's snapshots are, held against their file; `unmet` says what is wrong."""

    text: str = ""
    variant: str | None = None
    matched: bool = True
    unmet: str = ""
    records: tuple[SnapshotRecord, ...] = ()


class SnapshotKeeper:
    """Holds snapshots against their files, and knows which files are nobody's."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        """Know no test yet."""
        self._root = config.rootpath
        self._settings = settings
        lf = getattr(config.option, "lf", False)
        self._partial = bool(lf) or any("::" in str(arg) for arg in config.args)
        self._over = False
        self._known: Ownership | None = None
        self._items: list[pytest.Item] = []
        self._collected: dict[str, bool] = {}  # a test file's id, to whether all went well
        self._takes_part = False

    @property
    def directory(self) -> Path:
        """Return where all files lie."""
        return self._root / self._settings.snapshot_dir

    # What a session tells

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note which test files were collected to the end."""
        file = report.nodeid.partition("::")[0]
        if file.endswith(".py"):
            self._collected[file] = self._collected.get(file, True) and report.passed

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note all tests, before any hook drops some: what was deselected is not gone."""
        self._items = list(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        """Note when all tests are through."""
        try:
            return (yield)
        finally:
            self._over = True

    # What a world took

    def hold(
        self,
        item: pytest.Item,
        taken: Sequence[RankSnapshot],
        readings: Mapping[int, Sequence[Reading]],
    ) -> Held:
        """Hold what the ranks of a world took against what is recorded; write nothing."""
        if not taken:
            return Held()
        if clash := self._clash(item.config):
            return Held(unmet=clash)
        from pytest_shardcheck.snapshots import Document, compare, explain, merge, read
        from pytest_shardcheck.snapshots.extension import would_write
        from pytest_shardcheck.snapshots.table import Place, explain_missing
        from pytest_shardcheck.vocabulary.errors import UsageError

        variant = self._variant(item, taken)
        file = self._file_of(item, variant)
        document = Document(torch=taken[0].torch, snapshots=merge(taken))
        recorded: Document | None = None
        damaged = ""
        try:
            recorded = read(self._root / file, file)
        except UsageError as error:
            damaged = str(error)
        differ = compare(recorded, taken, self._tolerance(item)) if recorded is not None else []
        held = Held(
            text=document.to_text(),
            variant=variant,
            matched=recorded is not None and not differ,
            records=_records(document, file, recorded, {mismatch.name for mismatch in differ}),
        )
        if held.matched or would_write(item, recorded=recorded is not None or damaged != ""):
            return held
        place = Place(file=file, nodeid=item.stash.get(NODEID, item.nodeid))
        if recorded is not None:
            unmet = explain(differ, place, (recorded.torch, document.torch), readings)
        else:
            unmet = damaged or explain_missing(list(document.snapshots), place)
        return replace(held, unmet=unmet)

    def _clash(self, config: pytest.Config) -> str:
        """Say where syrupy would take our directory for its own, and delete what is there."""
        theirs = str(config.option.snapshot_dirname)
        if theirs not in PurePosixPath(self._settings.snapshot_dir).parts:
            return ""
        return (
            f"shardcheck.snapshot: syrupy's --snapshot-dirname is {theirs!r}, too, and it deletes "
            "what others keep there; choose another shardcheck_snapshot_dir in the ini file"
        )

    def settle(self, item: pytest.Item, held: Held) -> Held:
        """Have syrupy count a world's snapshots and write them where it was asked to.

        Only of a world that has ended well, but for what `held.unmet` says.
        """
        from pytest_shardcheck.snapshots import extension

        item.config.stash[extension.FILES] = self
        if not held.records:
            self._without_snapshots(item)
            return held
        self._ended(item, held.variant)
        outcome = extension.settle(item, held.text, matched=held.matched)
        if outcome not in ("created", "updated"):
            return held
        there = (record for record in held.records if record.ranks)
        written = tuple(replace(record, outcome=outcome) for record in there)
        return replace(held, records=written)

    def discovered(self) -> Iterable[Path]:
        """Return the files that are unused if no test of this session used them."""
        if not self._over:
            # syrupy asks when the first snapshot is taken, to learn whose a file is.
            yield from self._all()
            return
        known = self._ownership()
        for path in self._all():
            folder = PurePosixPath(path.parent.relative_to(self.directory).as_posix())
            if known.may_be_unused(folder, path.name, self._has_test_file) and _is_ours(path):
                yield path

    def _without_snapshots(self, item: pytest.Item) -> None:
        """Take note of a world that took none; what it once took may be there."""
        from pytest_shardcheck.snapshots import extension

        self._ended(item, self._variant(item, None))
        if not self._takes_part and self.directory.is_dir():
            extension.take_part(item)
            self._takes_part = True

    def _file_of(self, item: pytest.Item, variant: str | None) -> str:
        from pytest_shardcheck.snapshots import extension
        from pytest_shardcheck.snapshots.layout import file_name

        folder, stem = self._owner(item)
        assert variant is not None, "the ranks say which GPU they have"
        file = PurePosixPath(self._settings.snapshot_dir) / folder / file_name(stem, variant)
        item.stash[extension.FILE] = self._root / file
        return str(file)

    def _variant(self, item: pytest.Item, taken: Sequence[RankSnapshot] | None) -> str | None:
        from importlib.metadata import version

        from pytest_shardcheck.snapshots.layout import variant_of

        spec = item.stash[SPEC]
        if taken:
            gpu: str | None = "+".join(sorted({one.gpu for one in taken if one.gpu}))
            torch = taken[0].torch
        else:
            gpu = "" if spec.device == "cpu" else None
            torch = version("torch").partition("+")[0]
        template = self._settings.snapshot_variant
        return variant_of(template, device=spec.device, torch=torch, gpu=gpu)

    def _tolerance(self, item: pytest.Item) -> int | Fraction:
        if self._settings.snapshot_tolerance is not None:
            return self._settings.snapshot_tolerance
        spec = item.stash[SPEC]
        return _CUDA_TOLERANCE if spec.device == "cuda" and not spec.simulated else 0

    # Whose a file is

    def _ended(self, item: pytest.Item, variant: str | None) -> None:
        self._ownership().ended[self._owner(item)] = variant

    def _owner(self, item: pytest.Item) -> tuple[PurePosixPath, str]:
        from pytest_shardcheck.snapshots.layout import folder_of, name_of, stem_of

        name = _without_repetition(item)
        return folder_of(item.nodeid), stem_of(name_of(item.nodeid, name))

    def _ownership(self) -> Ownership:
        if self._known is None:
            from pytest_shardcheck.snapshots.layout import folder_of
            from pytest_shardcheck.snapshots.unused import Ownership

            self._known = Ownership(
                collected=set(map(self._owner, self._items)),
                files={folder_of(file) for file in self._collected},
                troubled={folder_of(file) for file, well in self._collected.items() if not well},
                partial=self._partial,
            )
        return self._known

    def _has_test_file(self, folder: PurePosixPath) -> bool:
        return (self._root / folder).with_name(f"{folder.name}.py").exists()

    def _all(self) -> list[Path]:
        files = sorted(self.directory.rglob("*.json"))
        return [path for path in files if not path.name.startswith(".") and path.is_file()]


def _is_ours(path: Path) -> bool:
    """Tell whether we wrote a file: the folder may hold others, that are nobody's to delete."""
    from pytest_shardcheck.snapshots import read
    from pytest_shardcheck.vocabulary.errors import UsageError

    try:
        return read(path, path.name) is not None
    except UsageError:
        return False


def _without_repetition(item: pytest.Item) -> str:
    """Return the name of an item without what pytest-repeat adds: each time is the same test."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    step = params.get("__pytest_repeat_step_number")
    if step is None:
        return item.name
    return re.sub(rf"-{step + 1}-[0-9]+\]$", "]", item.name)


def _records(
    document: Document, file: str, recorded: Document | None, different: set[str]
) -> tuple[SnapshotRecord, ...]:
    from pytest_shardcheck.vocabulary.snapshots import SnapshotRecord

    def outcome(name: str) -> SnapshotOutcome:
        if recorded is None:
            return "missing"
        return "different" if name in different else "matched"

    # What is recorded and was not taken has no ranks.
    gone = sorted(different - document.snapshots.keys())
    ranks_of = {**document.snapshots, **{name: {} for name in gone}}
    return tuple(
        SnapshotRecord(
            name=name, file=file, outcome=outcome(name), ranks=ranks, torch=document.torch
        )
        for name, ranks in ranks_of.items()
    )
