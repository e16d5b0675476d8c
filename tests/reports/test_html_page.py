"""The page, as text: what is in it, and that no test's text can break it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from pytest_shardcheck.reports import html
from pytest_shardcheck.reports.html import WorldPage, page
from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading
from pytest_shardcheck.vocabulary.memory import LiveBytes, MemoryReading, StateBytes
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.records import WorldRecord
from pytest_shardcheck.vocabulary.saved import SavedReading
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.vocabulary.verdicts import RankFigure, Verdict

EVIL = "</script><!--<script><img src=x onerror=alert(1)>\u2028&amp;\"'"


class _Scripts(HTMLParser):
    """Takes the scripts out as a browser would: up to the first end tag."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.others = []

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self.found.append([dict(attrs), ""])
        self.others.append(tag)

    def handle_data(self, data):
        if self.others[-1:] == ["script"]:
            self.found[-1][1] += data

    def handle_endtag(self, tag):
        self.others.append(f"/{tag}")


def scripts_of(text):
    parser = _Scripts()
    parser.feed(text)
    return parser


def record(nodeid="test_a.py::test_b[world2]", **fields):
    return WorldRecord(nodeid=nodeid, spec=WorldSpec(size=2), **fields)


def rows_of(*records):
    text = page([WorldPage(record=one, timelines={}) for one in records], {})
    (data,) = (t for a, t in scripts_of(text).found if a.get("id") == "worlds")
    return json.loads(data)["rows"]


def reading(rank, region="step", peak=10, calls=(), **fields):
    return Reading(
        rank=rank,
        region=region,
        memory=MemoryReading(
            by_device={"cpu": StateBytes(params=4 + rank)},
            live_by_device={"cpu": LiveBytes(start=0, end=4, peak=peak)},
        ),
        collectives=CollectivesReading(calls=calls),
        **fields,
    )


def verdict(marker, argument, measured, expected, **fields):
    figures = tuple(
        RankFigure(rank=rank, measured=figure, expected=expected)
        for rank, figure in enumerate(measured)
    )
    kind = "met" if max(measured) <= expected else "crossed"
    return Verdict(
        marker=marker, argument=argument, kind=kind, region="step", figures=figures, **fields
    )


def test_a_tests_text_can_end_no_script():
    worlds = [
        WorldPage(
            record=record(EVIL, failure=EVIL, readings=(reading(0, region=EVIL),)),
            timelines={0: EVIL},
        )
    ]
    text = page(worlds, {EVIL: EVIL})
    plain = scripts_of(page([WorldPage(record=record(), timelines={0: "QUJD"})], {}))
    parsed = scripts_of(text)
    assert parsed.others == plain.others
    (data,) = (json.loads(t) for a, t in parsed.found if a.get("id") == "worlds")
    assert data["about"] == {EVIL: EVIL}
    assert (data["rows"][0]["nodeid"], data["rows"][0]["failure"]) == (EVIL, EVIL)
    assert data["rows"][0]["regions"][0]["region"] == EVIL
    assert EVIL not in text


def test_the_page_asks_for_nothing():
    text = page([WorldPage(record=record(), timelines={})], {"torch": "2.13"})
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "http" not in policy[1]
    assert not re.search(r"<(link|img|iframe|script[^>]+src)", text)


def test_timelines_are_embedded_as_they_came():
    text = page([WorldPage(record=record(), timelines={1: "QUJD", 0: "REVG"})], {})
    found = [
        (attrs["data-world"], attrs["data-rank"], data)
        for attrs, data in scripts_of(text).found
        if "data-world" in attrs
    ]
    assert found == [("0", "0", "REVG"), ("0", "1", "QUJD")]


def test_assets_end_no_script_and_carry_their_licence():
    assets = resources.files(html) / "assets"
    for asset in assets.iterdir():
        if asset.name.endswith(".js"):
            assert "</script" not in asset.read_text(encoding="utf-8").lower()
    library = (assets / "echarts.min.js").read_text(encoding="utf-8")
    assert library.startswith("/*! Apache ECharts 6.1.0 (a part of it), Apache License 2.0")
    assert 'version="6.1.0"' in library or '"6.1.0"' in library
    licence = (assets / "echarts.LICENSE").read_text(encoding="utf-8")
    for words in ("Apache License", "d3", "ZRender", "tslib"):
        assert words in licence


def test_the_figures_of_a_row():
    calls = tuple(
        Call(operation="all_reduce", group="0", bytes=size, wire_bytes=size) for size in (8, 40)
    )
    (row,) = rows_of(
        record(
            outcome="failed",
            seconds=1.5,
            failure="too much",
            readings=(
                reading(0, peak=30, calls=calls, saved=SavedReading(bytes=7)),
                reading(0, region="inner", peak=20, calls=calls, outermost=False),
                reading(1, peak=25, calls=calls[:1]),
            ),
            verdicts=(
                verdict("max_memory", "peak", (30, 25), 40),
                verdict("max_memory", "state", (4, 5), 4),
                verdict("memory", "params", (4, 5), 1),
                verdict("max_memory", "peak", (1, 1), 9, narrowing="device='cuda:0'"),
            ),
        )
    )
    assert {name: row[name] for name in row if name not in ("regions", "ceilings")} == {
        "nodeid": "test_a.py::test_b[world2]",
        "world": "world2",
        "size": 2,
        "outcome": "failed",
        "seconds": 1.5,
        "state": 5,
        "peak": 30,
        "use": 1.25,  # exact markers are no ceilings
        "collectives": 2,  # rank 0's; the inner region's are among the outer one's
        "wire": 48,
        "saved": 7,
        "failure": "too much",
    }
    (ceiling,) = row["ceilings"]
    assert (ceiling["chart"], ceiling["of"]) == ("memory", {"0": 40, "1": 40})
    assert [region["peak"] for region in row["regions"]] == [30, 20, 25]


def test_what_was_not_measured_is_no_zero():
    (row,) = rows_of(record(outcome="skipped"))
    assert [row[name] for name in ("state", "peak", "use", "collectives", "wire", "saved")] == [
        None
    ] * 6
    unknown = Reading(
        rank=0,
        region="step",
        memory=MemoryReading(),
        collectives=CollectivesReading(unknown=("x",)),
        saved=SavedReading(unseen=("torch.func.grad",)),
    )
    (row,) = rows_of(record(readings=(unknown,)))
    figures = ("collectives", "wire", "peak", "saved")
    assert [row[name] for name in figures] == [None] * 4
    assert row["regions"][0]["saved"] is None


def test_no_world_at_all():
    assert rows_of() == []


@pytest.mark.parametrize("name", ["page.css", "body.html", "words.js", "overview.js"])
def test_assets_are_in_the_page(name):
    asset = (resources.files(html) / "assets" / name).read_text(encoding="utf-8")
    assert asset in page([], {})
