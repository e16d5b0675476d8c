"""Files that are written whole or not at all, and whether a path can hold one."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that nobody ever sees half of it; its folder is made.

    The file that a symbolic link leads to is replaced, not the link. Raises OSError where it can't
    be written; what was there before is then untouched.
    """
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic within one file system only.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def why_not_writable(path: Path) -> str:
    """Say why `path` can't become a file; "" where it can, as far as can be known beforehand."""
    path = path.resolve()
    if path.is_dir():
        return "it is a folder; name a file"
    if path.exists():
        if not path.is_file():  # a device or a pipe would be replaced by a file
            return "it is no regular file"
        if not os.access(path, os.W_OK):
            return "the file may not be written"
    folder = next(parent for parent in path.parents if parent.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    if not os.access(folder, os.W_OK):
        return f"the folder {folder} may not be written"
    return ""
