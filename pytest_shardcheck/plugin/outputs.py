"""What a session leaves behind when it has ended; in the process that has all reports."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final, Literal

import pytest

from pytest_shardcheck.reports import recording
from pytest_shardcheck.reports.job_summary import job_summary
from pytest_shardcheck.vocabulary.files import why_not_writable, write_whole
from pytest_shardcheck.vocabulary.units import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_shardcheck.plugin.records import Timelines
    from pytest_shardcheck.plugin.settings import Settings
    from pytest_shardcheck.vocabulary.records import WorldRecord

_PACKAGES: Final = ("torch", "pytest", "pytest-shardcheck")


def refuse_bad_paths(settings: Settings) -> None:
    """Raise pytest.UsageError where something can't be written, before any test has run for it."""
    if settings.json is not None and settings.json == settings.html:
        raise pytest.UsageError(
            f"--shardcheck-json and --shardcheck-html: two paths are expected, not {settings.json} "
            "for both: one would replace the other"
        )
    # A trace is a file of its own: whether one can lie in the folder is what matters.
    traces = settings.trace and settings.trace / "trace.json"
    for option, path in (
        ("--shardcheck-json", settings.json),
        ("--shardcheck-html", settings.html),
        ("--shardcheck-trace", traces),
    ):
        if path is not None and (reason := why_not_writable(path)):
            raise pytest.UsageError(f"{option}: {path} can't be written: {reason}")


def environment() -> dict[str, str]:
    """Return what figures may depend on; torch is not imported for it."""
    return {
        **{name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Say in the terminal what was written where, or why it was not; that may fail the session."""

    text: str
    colour: Literal["cyan", "yellow", "red"] = "cyan"
    fails: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a session has kept of its worlds: `incomplete` says why some may be missing."""

    records: Sequence[WorldRecord]
    timelines: Timelines
    in_short: str
    incomplete: str = ""


def write(settings: Settings, kept: Kept) -> list[Note]:
    """Write what the settings and the environment ask for; say so, or why it could not be done."""
    asked = [
        ("--shardcheck-json", settings.json, _write_recording),
        ("--shardcheck-html", settings.html, _write_page),
        ("--shardcheck-trace", settings.trace, _write_traces),
    ]
    notes: list[Note] = []
    for option, path, write_one in asked:
        if path is None:
            continue
        try:
            notes.append(Note(text=write_one(path, kept)))
        except OSError as error:
            text = f"{option}: {path} could not be written: {error}"
            notes.append(Note(text=text, colour="red", fails=True))
    if settings.step_summary is not None and kept.records:
        try:
            text = job_summary(kept.records, kept.in_short, kept.incomplete)
            _append(settings.step_summary, text)
        except OSError as error:
            # Nobody asked for it: the tests' outcome stays what it is.
            text = f"the job summary {settings.step_summary} could not be written: {error}"
            notes.append(Note(text=text, colour="yellow"))
    return notes


def _append(path: Path, text: str) -> None:
    """Add to what other steps of the job have written."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _write_recording(path: Path, kept: Kept) -> str:
    """Write the session's recording; return what to say of it."""
    whole = recording.Recording(
        environment=environment(), incomplete=kept.incomplete, tests=tuple(kept.records)
    )
    write_whole(path, recording.to_text(whole))
    what = f"{counted(len(kept.records), 'world test')} recorded in {path}"
    return f"{what} (incomplete: {kept.incomplete})" if kept.incomplete else what


def _write_page(path: Path, kept: Kept) -> str:
    from pytest_shardcheck.plugin.pictures import write_page

    return write_page(path, kept.records, kept.timelines)


def _write_traces(folder: Path, kept: Kept) -> str:
    from pytest_shardcheck.plugin.pictures import write_traces

    return write_traces(folder, kept.records, kept.timelines)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source folder
        return "unknown"
