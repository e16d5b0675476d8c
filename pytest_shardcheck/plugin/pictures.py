"""The page and the traces of a session that has ended."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_shardcheck.plugin.outputs import environment
from pytest_shardcheck.plugin.records import Timelines
from pytest_shardcheck.reports.html import WorldPage, page
from pytest_shardcheck.reports.trace import file_name, trace
from pytest_shardcheck.vocabulary.files import write_whole
from pytest_shardcheck.vocabulary.records import WorldRecord
from pytest_shardcheck.vocabulary.units import counted
from pytest_shardcheck.worlds.packed_timelines import unpacked


def write_page(path: Path, records: Sequence[WorldRecord], timelines: Timelines) -> str:
    """Write the page; return what to say of it."""
    worlds = [WorldPage(record=record, timelines=timelines.of(record.nodeid)) for record in records]
    write_whole(path, page(worlds, _about()))
    return f"page of {counted(len(worlds), 'world')}: {path}"


def write_traces(folder: Path, records: Sequence[WorldRecord], timelines: Timelines) -> str:
    """Write a trace of each world that has a timeline; return what to say of it."""
    count = 0
    for record in records:
        packed = timelines.of(record.nodeid)
        if packed:
            unfolded = {rank: unpacked(text) for rank, text in packed.items()}
            text = json.dumps(trace(record, unfolded), separators=(",", ":"))
            write_whole(folder / file_name(record.nodeid), text)
            count += 1
    return f"{counted(count, 'trace')} in {folder}"


def _about() -> Mapping[str, str]:
    versions = environment()
    return {
        "torch": versions["torch"],
        "Python": versions["python"],
        "pytest-shardcheck": versions["pytest-shardcheck"],
    }
