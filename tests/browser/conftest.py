"""A real headless Chromium, and a page of worlds that are made up to the byte."""

from __future__ import annotations

import base64
import json
import os
import shutil
import zlib

import pytest

from pytest_shardcheck.reports.html import WorldPage, page
from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading
from pytest_shardcheck.vocabulary.memory import (
    LiveBytes,
    MemoryReading,
    StateBytes,
    TensorRecord,
)
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.records import WorldRecord
from pytest_shardcheck.vocabulary.saved import SavedReading
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.vocabulary.timelines import Issued, RegionSpan, SavedCurve, Timeline, Turn
from pytest_shardcheck.vocabulary.verdicts import RankFigure, Verdict

EVIL = "test_z.py::test_evil[world2-</script><img src=x onerror=alert(1)>]"
CALL = Call(
    operation="all_reduce", group="0", axes=("dp",), ranks=(0, 1), bytes=5_000, wire_bytes=5_000
)


@pytest.fixture(scope="session")
def chromium():
    """Debian's Chromium, driven by Playwright."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("there is no chromium here")
    # Chromium has no sandbox for root, which containers run as.
    args = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=args)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page(worlds(), {"torch": "2.13.0"}), encoding="utf-8")
    return path


def worlds():
    """Twelve tests of two ranks; the first has a timeline of each rank, and they are alike."""
    made = [
        WorldPage(
            record=record(number),
            timelines={rank: packed(timeline(rank)) for rank in range(2)} if number == 0 else {},
        )
        for number in range(10)
    ]
    failed = record(10, outcome="failed", failure="max_memory(peak): <b>crossed</b>")
    differ = {rank: packed(timeline(rank, temporaries=1_000 * rank)) for rank in range(2)}
    evil = WorldRecord(nodeid=EVIL, spec=WorldSpec(size=2), outcome="skipped")
    return [
        *made,
        WorldPage(record=failed, timelines=differ),
        WorldPage(record=evil, timelines={}),
    ]


def record(number, **fields):
    readings = tuple(
        Reading(
            rank=rank,
            region="step",
            memory=MemoryReading(
                by_device={"cpu": StateBytes(params=1_000 * (10 - number))},
                live_by_device={"cpu": LiveBytes(start=0, end=0, peak=9_000 + number)},
            ),
            collectives=CollectivesReading(calls=(CALL,) * number),
            saved=SavedReading(bytes=3_000),
        )
        for rank in range(2)
    )
    figures = tuple(
        RankFigure(rank=rank, measured=9_000 + number, expected=10_000) for rank in range(2)
    )
    verdict = Verdict(
        marker="max_memory", argument="peak", kind="met", region="step", figures=figures
    )
    return WorldRecord(
        nodeid=f"tests/test_m.py::test_{number}[world2]",
        spec=WorldSpec(size=2),
        seconds=0.1 * number,
        readings=readings,
        verdicts=(verdict,),
        **fields,
    )


def timeline(rank, temporaries=0):
    """A step of 100 operations that holds most, 9,000 bytes and `temporaries`, at the 60th."""
    weights = TensorRecord(bytes=2_000, dtype="float32", shape=(20, 25), category="parameters")
    scratch = TensorRecord(
        bytes=4_000 + temporaries,
        dtype="float32",
        shape=(1_000,),
        category="temporaries",
        module="layers.3",
        line="train.py:12",
    )
    return Timeline(
        rank=rank,
        device="cpu",
        start_ns=1_000_000 + rank,
        operations=100,
        at=(0, 20, 60, 80),
        time_ns=(0, 2_000_000, 6_000_000, 8_000_000),
        memory={
            "cpu": {
                "parameters": (2_000, 4_000, 4_000, 4_000),
                "gradients": (0, 0, 1_000, 0),
                "temporaries": (0, 0, 4_000 + temporaries, 0),
            }
        },
        tensors=(weights, scratch),
        alive={"cpu": ((0, 0, 0, 1), (0, 1, 3, 2), (1, 2, 2, 1))},
        turns=(
            Turn(phase="forward", at=0, time_ns=0),
            Turn(phase="backward", at=50, time_ns=5_000_000),
            Turn(phase="optimizer", at=75, time_ns=7_500_000),
        ),
        regions=(
            RegionSpan(region="step", begin=10, begin_ns=1_000_000, end=90, end_ns=9_000_000),
        ),
        kinds=(CALL,),
        calls=(Issued(kind=0, at=60, time_ns=6_000_000, returned_ns=6_100_000),),
        saved=SavedCurve(
            at=(10, 40, 70, 90),
            time_ns=(1_000_000, 4_000_000, 7_000_000, 9_000_000),
            bytes=(0, 3_000, 500, -1),
            count=(0, 3, 1, -1),
        ),
    )


def packed(its):
    return base64.b64encode(zlib.compress(json.dumps(its.to_json()).encode())).decode()
