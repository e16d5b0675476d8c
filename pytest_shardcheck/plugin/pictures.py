"""Write the page and the traces when a session ends."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_shardcheck.plugin.records import Records, Timelines
from pytest_shardcheck.reports.html import WorldPage, page
from pytest_shardcheck.reports.trace import file_name, trace
from pytest_shardcheck.worlds.packed_timelines import unpacked

if TYPE_CHECKING:
    from pytest_shardcheck.plugin.settings import Settings


class Pictures:
    """Keeps what reports say of worlds, and draws it."""

    def __init__(self, settings: Settings) -> None:
        """Start with no world."""
        self._settings = settings
        self._records = Records()
        self._timelines = Timelines()

    def add(self, report: pytest.TestReport) -> None:
        """Take note of a report."""
        self._records.add(report)
        self._timelines.add(report)

    def finish(self, session: pytest.Session) -> list[str]:
        """Write what was asked for, and return what to say of it.

        What can't be written makes a session fail that had passed: somebody waits for it.
        """
        option = session.config.option
        if option.collectonly or option.setupplan:
            return []
        lines = []
        for name, write, path in (
            ("--shardcheck-html", self._write_page, self._settings.html),
            ("--shardcheck-trace", self._write_traces, self._settings.trace),
        ):
            if path is None:
                continue
            try:
                lines.append(write(path))
            except OSError as error:
                lines.append(f"{name}: nothing was written to {path}: {error}")
                if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return lines

    def _write_page(self, path: Path) -> str:
        worlds = [
            WorldPage(record=record, timelines=self._timelines.of(record.nodeid))
            for record in self._records.all()
        ]
        _write_whole(path, page(worlds, _about()))
        return f"page of {_count(len(worlds), 'world')}: {path}"

    def _write_traces(self, folder: Path) -> str:
        count = 0
        for record in self._records.all():
            packed = self._timelines.of(record.nodeid)
            if packed:
                timelines = {rank: unpacked(text) for rank, text in packed.items()}
                text = json.dumps(trace(record, timelines), separators=(",", ":"))
                _write_whole(folder / file_name(record.nodeid), text)
                count += 1
        return f"{_count(count, 'trace')} in {folder}"


def _about() -> Mapping[str, str]:
    return {
        "torch": metadata.version("torch"),
        "Python": platform.python_version(),
        "pytest-shardcheck": metadata.version("pytest-shardcheck"),
    }


def _write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=f".{path.name[:40]}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o666 & ~_umask())
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
