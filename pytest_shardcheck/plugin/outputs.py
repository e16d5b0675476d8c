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

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_shardcheck.plugin.settings import Settings
    from pytest_shardcheck.vocabulary.records import WorldRecord

_PACKAGES: Final = ("torch", "pytest", "pytest-shardcheck")


def refuse_bad_path(path: Path, source: str) -> None:
    """Raise pytest.UsageError where no file can be written, before any test has run for it."""
    if reason := why_not_writable(path):
        raise pytest.UsageError(f"{source}: {path} can't be written: {reason}")


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


def write(
    settings: Settings, records: Sequence[WorldRecord], in_short: str, incomplete: str
) -> list[Note]:
    """Write what the settings and the environment ask for; say so, or why it could not be done."""
    notes: list[Note] = []
    if settings.json is not None:
        try:
            notes.append(Note(text=_write_recording(settings.json, records, incomplete)))
        except OSError as error:
            text = f"{settings.json} could not be written: {error}"
            notes.append(Note(text=text, colour="red", fails=True))
    if settings.step_summary is not None and records:
        try:
            _append(settings.step_summary, job_summary(records, in_short, incomplete))
        except OSError as error:
            # Nobody asked for it: the tests' outcome stays what it is.
            text = f"the job summary {settings.step_summary} could not be written: {error}"
            notes.append(Note(text=text, colour="yellow"))
    return notes


def _append(path: Path, text: str) -> None:
    """Add to what other steps of the job have written."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def _write_recording(path: Path, records: Sequence[WorldRecord], incomplete: str) -> str:
    """Write the session's recording; return what to say of it."""
    whole = recording.Recording(
        environment=environment(), incomplete=incomplete, tests=tuple(records)
    )
    write_whole(path, recording.to_text(whole))
    what = f"{len(records)} world test{'' if len(records) == 1 else 's'} recorded in {path}"
    return f"{what} (incomplete: {incomplete})" if incomplete else what


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source folder
        return "unknown"
