"""Put the page together: the rows, the timelines as ranks packed them, scripts and styles."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from .rows import row_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_shardcheck.vocabulary.records import WorldRecord

# Nothing may be loaded: the page is read where there is no network, and tests' texts are in it.
_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_SCRIPTS: Final = (
    "echarts.min.js",
    "words.js",
    "timeline.js",
    "charts.js",
    "detail.js",
    "overview.js",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldPage:
    """Hold one world test's record, and the packed timelines of its ranks that have one."""

    record: WorldRecord
    timelines: Mapping[int, str]


def page(worlds: Sequence[WorldPage], about: Mapping[str, str]) -> str:
    """Return the whole page.

    Args:
        worlds: the tests, in the order in which they are listed at first.
        about: what to say of the session: a word to its value.
    """
    return "".join(_parts(worlds, about))


def _parts(worlds: Sequence[WorldPage], about: Mapping[str, str]) -> Iterator[str]:
    yield "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
    yield f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
    yield '<meta name=viewport content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n<title>pytest-shardcheck</title>\n'
    yield f"<style>\n{_asset('page.css')}</style>\n"
    yield _asset("body.html")
    data = {"about": dict(about), "rows": [row_of(world.record) for world in worlds]}
    yield f'<script type="application/json" id="worlds">{_json(data)}</script>\n'
    for number, world in enumerate(worlds):
        for rank, packed in sorted(world.timelines.items()):
            # Base64: no letter of it means anything to HTML.
            yield (
                f'<script type="text/plain" data-world="{number}" data-rank="{rank}">'
                f"{html.escape(packed)}</script>\n"
            )
    for name in _SCRIPTS:
        yield f"<script>\n{_asset(name)}</script>\n"


def _json(data: Any) -> str:
    """Return JSON that no text of a test can end the script with."""
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _asset(name: str) -> str:
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")
