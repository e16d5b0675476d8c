"""What a session leaves behind when it has ended; in the process that has all reports."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Final

import pytest

from pytest_shardcheck.reports import recording
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
    """Say in the terminal what was written where, or why it was not."""

    text: str
    failed: bool = False

    @property
    def colour(self) -> str:
        """Return pytest's name of the colour."""
        return "red" if self.failed else "cyan"


def write(settings: Settings, records: Sequence[WorldRecord], incomplete: str) -> list[Note]:
    """Write what the settings ask for; say so, or why it could not be done."""
    if settings.json is None:
        return []
    try:
        return [Note(text=_write_recording(settings.json, records, incomplete))]
    except OSError as error:
        return [Note(text=f"{settings.json} could not be written: {error}", failed=True)]


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
