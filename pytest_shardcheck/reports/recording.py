"""The records of a session ↔ the file that `--shardcheck-json` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.records import WorldRecord

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Hold what a session recorded of its worlds.

    `environment` are the versions and the platform that it ran with. `incomplete` says why tests
    may be missing; it is "" where every test that was selected has run. `tests` are in the order
    of their node ids.
    """

    environment: Mapping[str, str] = field(default_factory=dict)
    incomplete: str = ""
    tests: tuple[WorldRecord, ...] = ()


def to_text(recording: Recording) -> str:
    """Return the text of the file: JSON with a line for each test."""
    head = {
        "schema": SCHEMA_VERSION,
        "complete": not recording.incomplete,
        "incomplete": recording.incomplete,
        "environment": dict(recording.environment),
    }
    opened = json.dumps(head, indent=1).removesuffix("\n}")
    tests = ",\n".join(json.dumps(record.to_json()) for record in recording.tests)
    return f'{opened},\n "tests": [\n{tests}\n]}}\n'


def read(path: Path) -> Recording:
    """Return what a file holds.

    Raises:
        UsageError: It can't be read, is no recording, or one of another schema.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    except ValueError as error:  # neither UTF-8 nor JSON, or half of it
        raise UsageError(f"{path} is no JSON ({error}); {_EXPECTED}") from error
    return _recording(path, data)


_EXPECTED: Final = "a file that pytest --shardcheck-json=PATH wrote is expected"


def _recording(path: Path, data: Any) -> Recording:
    if not isinstance(data, dict) or not {"schema", "tests"} <= data.keys():
        raise UsageError(f"{path} is no recording; {_EXPECTED}")
    if data["schema"] != SCHEMA_VERSION:
        raise UsageError(
            f"{path} is a recording of schema {data['schema']!r}, and {SCHEMA_VERSION} was "
            "expected: record it again with the installed pytest-shardcheck"
        )
    try:
        return Recording(
            environment={str(name): str(value) for name, value in data["environment"].items()},
            incomplete=str(data["incomplete"]),
            tests=tuple(map(WorldRecord.from_json, data["tests"])),
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # A newer version may have added keys that this one can't place.
        raise UsageError(
            f"{path} is damaged, or of a newer pytest-shardcheck ({type(error).__name__}: {error})"
        ) from error
