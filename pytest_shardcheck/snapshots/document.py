"""One test's file of snapshots: its text, read with care and written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_shardcheck.snapshots.merge import unfold
from pytest_shardcheck.vocabulary.errors import UsageError

SCHEMA_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Hold a file: torch's version when it was recorded, and name → ranks in words → value."""

    torch: str
    snapshots: Mapping[str, Mapping[str, Any]]

    def to_text(self) -> str:
        """Return the file's text: sorted by name, but for ranks, which go up."""
        snapshots = {
            name: {ranks: _sorted(value) for ranks, value in self.snapshots[name].items()}
            for name in sorted(self.snapshots)
        }
        data = {"schema": SCHEMA_VERSION, "torch": self.torch, "snapshots": snapshots}
        return _dumped(data, "\n") + "\n"

    @classmethod
    def from_text(cls, text: str, file: str) -> Document:
        """Read a file's text.

        Raises:
            UsageError: it is no such file: damaged, half merged, or of another version.
        """
        try:
            data = json.loads(text)
            schema = data["schema"]
            if schema == SCHEMA_VERSION:
                for folded in data["snapshots"].values():
                    unfold(folded)
                return cls(torch=str(data["torch"]), snapshots=data["snapshots"])
            seen = f"one of schema {schema!r} was seen"
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            seen = f"it can't be read ({type(error).__name__}: {error})"
        raise UsageError(
            f"{file}: a snapshot of schema {SCHEMA_VERSION} was expected, {seen}. Restore the "
            "file, or record it again with --snapshot-update."
        )


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _sorted(value[name]) for name in sorted(value, key=_by_number)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _dumped(value: Any, new_line: str) -> str:
    """Write a line for each figure, as reviews need it, but a whole list on one."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False)
    inner = f"{new_line} "
    items = [
        f"{inner}{json.dumps(name, ensure_ascii=False)}: {_dumped(item, inner)}"
        for name, item in value.items()
    ]
    return f"{{{','.join(items)}{new_line}}}"


def _by_number(name: str) -> tuple[int, str]:
    # The sizes of calls.
    return (int(name), "") if name.isascii() and name.isdigit() else (-1, name)


def read(path: Path, file: str) -> Document | None:
    """Read the file at `path`, called `file` in messages; None where there is none.

    Raises:
        UsageError: it is no file of snapshots.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: the snapshot can't be read: {error}") from error
    return Document.from_text(text, file)
