"""Snapshots as plain data: what a rank sends of one, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_shardcheck.vocabulary.plain import Plain

SnapshotOutcome = Literal["matched", "different", "missing", "created", "updated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot(Plain):
    """Hold what one rank gave to one `shardcheck.snapshot(...)`.

    `value` is what is kept of it, as JSON has it. `region` and `occurrence` say of which reading it
    is; `region` is None for any other value. `only` and `exclude` are fields, `tolerances` maps
    fields ("" is all of them) to an amount or a share, as text: "5", "1/100". `torch` is its
    version, `gpu` the name of the rank's GPU ("" on the CPU).
    """

    name: str
    rank: int
    value: Any
    region: str | None = None
    occurrence: int = 0
    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tolerances: Mapping[str, str] = field(default_factory=dict)
    torch: str = ""
    gpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord(Plain):
    """Hold one snapshot of a world that ended well, and how it stood to what was recorded.

    `file` is its path from rootdir, with "/" on every platform; a test's snapshots share one.
    `ranks` maps ranks in words ("ranks 0-3") to what each of them had, as the file keeps it; it is
    empty where the snapshot is recorded and no rank took it.
    """

    name: str
    file: str
    outcome: SnapshotOutcome
    ranks: Mapping[str, Any]
    torch: str = ""
