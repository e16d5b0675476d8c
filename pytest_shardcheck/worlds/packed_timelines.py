"""Timelines as they travel: JSON, deflated, in base64 where only text may pass.

What a page embeds is just that, so nobody between a rank and a browser has to read it.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from typing import TYPE_CHECKING

from pytest_shardcheck.vocabulary.timelines import Timeline

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, timeline: Timeline) -> None:
    """Write a timeline into a file, whole or not at all: a rank may be killed meanwhile."""
    text = json.dumps(timeline.to_json(), separators=(",", ":"))
    unfinished = path.with_name(f"{path.name}.unfinished")
    unfinished.write_bytes(zlib.compress(text.encode()))
    os.replace(unfinished, path)


def read(path: Path) -> str | None:
    """Return what `write` wrote, as base64; None where nothing was written."""
    try:
        return base64.b64encode(path.read_bytes()).decode()
    except FileNotFoundError:
        return None


def unpacked(text: str) -> Timeline:
    """Return the timeline that `read` returned."""
    return Timeline.from_json(json.loads(zlib.decompress(base64.b64decode(text))))
