"""A file that a rank and the session both map: what one stores, the other reads."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def mapped(path: Path, size: int) -> mmap.mmap:
    """Map the first ``size`` bytes of the file at ``path``, made where it is missing."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(fd, size)
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)
