"""Traces, held against the rules of the Trace Event Format."""

from __future__ import annotations

import json
import re

import pytest

from pytest_shardcheck.reports.trace import file_name, trace
from pytest_shardcheck.vocabulary.collectives import Call
from pytest_shardcheck.vocabulary.records import WorldRecord
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.vocabulary.timelines import (
    Issued,
    RegionSpan,
    SavedCurve,
    Timeline,
    Turn,
)

RECORD = WorldRecord(nodeid="tests/test_a.py::test_b[world2]", spec=WorldSpec(size=2))
DP = Call(operation="all_reduce", group="1", axes=("dp",), ranks=(0, 1), bytes=400, module="fc")
TP = Call(operation="all_gather", group="2", ranks=(0,), bytes=8)


def timeline(rank, start_ns):
    return Timeline(
        rank=rank,
        device="cpu",
        start_ns=start_ns,
        operations=9,
        at=(1, 4, 8),
        time_ns=(1_000, 5_000, 9_000),
        memory={"cpu": {"parameters": (4, 4, 4), "gradients": (0, 4, 0)}},
        turns=(
            Turn(phase="forward", at=0, time_ns=0),
            Turn(phase="backward", at=3, time_ns=4_000),
        ),
        regions=(
            RegionSpan(region="inner", begin=2, begin_ns=2_500, end=5, end_ns=6_000, depth=1),
            RegionSpan(region="step", begin=1, begin_ns=500, end=8, end_ns=9_500, failed=True),
        ),
        kinds=(DP, TP),
        calls=(
            Issued(kind=0, at=4, time_ns=4_500, returned_ns=6_000),
            Issued(kind=0, at=4, time_ns=5_000, returned_ns=7_000),  # beside it, by a thread
            Issued(kind=1, at=6, time_ns=6_500, returned_ns=6_500),
            Issued(kind=0, at=8, time_ns=8_000, returned_ns=8_500),
        ),
        saved=SavedCurve(at=(2, 5), time_ns=(2_000, 5_000), bytes=(64, -1), count=(1, -1)),
    )


@pytest.fixture
def events():
    data = trace(RECORD, {1: timeline(1, 10_250), 0: timeline(0, 10_000)})
    data = json.loads(json.dumps(data, allow_nan=False))
    assert data["otherData"]["test"] == RECORD.nodeid
    assert data["displayTimeUnit"] in ("ms", "ns")
    return data["traceEvents"]


def test_every_event_has_what_its_kind_needs(events):
    needed = {
        "M": {"name", "ph", "pid", "args"},
        "X": {"name", "ph", "pid", "tid", "ts", "dur", "cat", "args"},
        "C": {"name", "ph", "pid", "ts", "args"},
    }
    assert {event["ph"] for event in events} == set(needed)
    for event in events:
        assert needed[event["ph"]] <= set(event)
        assert isinstance(event["pid"], int)
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
        if event["ph"] == "C":
            assert event["args"]
            assert all(type(figure) is int and figure >= 0 for figure in event["args"].values())


def test_slices_of_a_thread_nest(events):
    threads = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(threads) == 2 * 5  # regions, phases, two of group dp, and group 2
    for slices in threads.values():
        slices.sort(key=lambda event: (event["ts"], -event["dur"]))
        ends = []
        for event in slices:
            end = round(event["ts"] + event["dur"], 3)
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            assert not ends or end <= ends[-1]
            ends.append(end)


def test_every_process_and_thread_is_named(events):
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        "rank 0",
        "rank 1",
    }
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"} == set(named)
    assert sorted(name for (rank, _), name in named.items() if rank == 0) == [
        "group 2",
        "group dp",
        "group dp (2)",
        "phases",
        "regions",
    ]


def test_what_happened_when(events):
    def of(rank, ph, name):
        return [e for e in events if (e["pid"], e["ph"], e["name"]) == (rank, ph, name)]

    (backward,) = of(0, "X", "backward")
    assert (backward["ts"], backward["dur"]) == (4.0, 5.5)
    (backward,) = of(1, "X", "backward")
    assert backward["ts"] == 4.25  # the ranks share a clock
    (region,) = of(0, "X", "step (failed)")
    assert (region["ts"], region["dur"]) == (0.5, 9.0)
    counters = of(0, "C", "live on cpu (B)")
    assert [sum(event["args"].values()) for event in counters] == [4, 8, 4]
    assert [event["args"]["bytes"] for event in of(0, "C", "saved activations (B)")] == [64, 0]
    (call, *_) = of(0, "X", "all_reduce")
    assert call["args"]["bytes"] == 400
    assert call["args"]["module"] == "fc"


def test_a_world_without_timelines_has_an_empty_trace():
    assert trace(RECORD, {})["traceEvents"] == []


def test_file_names_are_stable_safe_and_distinct():
    name = file_name("tests/test_a.py::TestB::test_c[world2-</script>]")
    assert name == file_name("tests/test_a.py::TestB::test_c[world2-</script>]")
    assert name.startswith("tests-test_a-TestB-test_c-world2-script-")
    nodeids = ["t.py::a[/]", "t.py::a[\\]", "t.py::a[ä]", "t.py::a[ö]", "..", "x" * 500, "CON"]
    names = [file_name(nodeid) for nodeid in nodeids]
    assert len(set(names)) == len(nodeids)
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.json|-?[0-9a-f]{8}\.json", name), name
        assert len(name) < 100
