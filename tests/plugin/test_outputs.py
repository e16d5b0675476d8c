"""What a session says and leaves behind: table, summary, recording, JUnit file, job summary."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from pytest_shardcheck.reports.recording import read

TESTS = """
    import os, pathlib, pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def measured(shardcheck, world, numbers=4):
        with shardcheck.measure(torch.nn.Linear(numbers, 1, bias=False)):
            dist.all_reduce(torch.ones(1 + world.rank % 1))

    @pytest.mark.max_memory(params=16)
    @pytest.mark.max_collectives(all_reduce=4)
    def test_near(process_group, shardcheck, world):
        measured(shardcheck, world)

    @pytest.mark.max_memory(peak="1 kB")
    def test_ranks_differ(process_group, shardcheck, world):
        measured(shardcheck, world, 4 + world.rank)

    @pytest.mark.max_memory(params=15)
    def test_crosses(process_group, shardcheck, world):
        measured(shardcheck, world)

    def test_dies(world):
        if world.rank == 1:
            os._exit(3)

    @pytest.mark.flaky(reruns=1)
    def test_runs_again(request, process_group, shardcheck, world, pytestconfig):
        first = pathlib.Path(pytestconfig.rootpath, f"first{world.rank}")
        ran, numbers = first.exists(), 8 if first.exists() else 16
        first.touch()
        measured(shardcheck, world, numbers)
        assert ran

    @pytest.mark.skip
    def test_skipped(): pass

    @pytest.mark.cuda(devices=1000)
    def test_needs_more_gpus(): pass

    @pytest.mark.xfail
    def test_xfails(world):
        assert world.size == 3
"""
SMALL = """
    def test_plain(): pass
"""
OUTPUTS = ("--shardcheck-json=out.json", "--junit-xml=junit.xml", "--shardcheck-report")


class _Ran:
    def __init__(self, run_session, *args):
        files = {"test_it.py": TESTS, "test_small.py": SMALL}
        with pytest.MonkeyPatch.context() as patch:
            # A file of its own in each session's folder, where sessions run.
            patch.setenv("GITHUB_STEP_SUMMARY", "step_summary.md")
            self.session = run_session(files, *OUTPUTS, *args)
        self.root = self.session.temporary.parent
        self.recording = read(self.root / "out.json")
        self.tests = {
            record.nodeid.partition("::")[2].removesuffix("[world2]"): record
            for record in self.recording.tests
        }


@pytest.fixture(scope="module")
def alone(run_session):
    pytest.importorskip("pytest_rerunfailures")
    return _Ran(run_session, "--color=no")


@pytest.fixture(scope="module")
def xdist(run_session):
    pytest.importorskip("pytest_rerunfailures")
    pytest.importorskip("xdist")
    return _Ran(run_session, "-n2", "--color=yes")


def test_the_recording_has_every_world_with_its_outcome(alone):
    assert alone.recording.incomplete == ""
    assert {name: record.outcome for name, record in alone.tests.items()} == {
        "test_near": "passed",
        "test_ranks_differ": "passed",
        "test_crosses": "failed",
        "test_dies": "failed",
        "test_runs_again": "passed",
        "test_skipped": "skipped",
        "test_needs_more_gpus": "skipped",
        "test_xfails": "xfailed",
    }
    assert "rank 1 of 2 died" in alone.tests["test_dies"].failure
    # That of the run that counts, and once.
    assert [r.memory.params for r in alone.tests["test_runs_again"].readings] == [32, 32]
    assert alone.tests["test_dies"].readings == ()


def test_it_is_the_same_under_xdist(alone, xdist):
    def comparable(ran):
        return {
            name: replace(record, seconds=0.0, failure=record.failure.replace(str(ran.root), ""))
            for name, record in ran.tests.items()
            if name != "test_dies"  # in how far rank 0 came is chance
        }

    assert comparable(xdist) == comparable(alone)
    assert xdist.tests["test_dies"].outcome == "failed"
    assert xdist.recording.incomplete == ""


def test_the_table_and_the_summary(alone):
    out = alone.session.out
    lines = [line for line in out.splitlines() if "test_it.py::" in line or line[:6] == "  step"]
    crossed, near, differ, again = (
        lines.index(f"test_it.py::test_{name}")
        for name in (
            "crosses[world2] FAILED", "near[world2]", "ranks_differ[world2]", "runs_again[world2]"
        )
    )  # fmt: skip
    assert [near, differ, again] == [crossed + 2, crossed + 4, crossed + 7]
    assert "0-1 " in lines[crossed + 1]
    assert [line.split()[1] for line in lines[differ + 1 : again]] == ["0", "1*"]
    # Six ran, one of them twice, and one died; a ceiling of 16 B was reached by both ranks.
    (summary,) = [line for line in out.splitlines() if line.startswith("shardcheck: 7 worlds")]
    assert summary == "shardcheck: 7 worlds, 14 ranks, 1 ceiling within 5 %"
    assert f"shardcheck: 8 world tests recorded in {alone.root}/out.json" in out


def test_colours_are_pytests(alone, xdist):
    assert "\x1b[" not in alone.session.out
    out = xdist.session.out
    assert "test_it.py::test_crosses[world2]\x1b[31m FAILED\x1b[0m" in out
    assert "\x1b[1m1*\x1b[0m" in out


@pytest.mark.parametrize("name", ["alone", "xdist"])
def test_junit_properties(name, request):
    ran = request.getfixturevalue(name)
    cases = ET.parse(ran.root / "junit.xml").iter("testcase")
    found = {
        case.get("name"): [(p.get("name"), p.get("value")) for p in case.iter("property")]
        for case in cases
    }
    peaks = [reading.memory.peak for reading in ran.tests["test_ranks_differ"].readings]
    assert found["test_ranks_differ[world2]"] == [
        ("shardcheck_peak_bytes", str(max(peaks))),
        ("shardcheck_state_bytes", "20"),
        ("shardcheck_collectives", "1"),
        ("shardcheck_wire_bytes", "4"),
        ("shardcheck_saved_bytes", "0"),
    ]
    assert dict(found["test_runs_again[world2]"])["shardcheck_state_bytes"] == "32"
    assert len(found["test_runs_again[world2]"]) == 5
    assert found["test_plain"] == found["test_dies[world2]"] == []


@pytest.mark.parametrize("name", ["alone", "xdist"])
def test_the_job_summary(name, request):
    ran = request.getfixturevalue(name)
    text = (ran.root / "step_summary.md").read_text()
    assert text.count("### shardcheck: 7 worlds, 14 ranks, 1 ceiling within 5 %\n") == 1
    assert text.index("test_crosses[world2]</code>: max_memory(params): the ceiling") < text.index(
        "| `test_it.py::test_near[world2]` | `max_memory(params)` | step | 16 B | 16 B | 100.0 % |"
    )
    assert "test_runs_again[world2]</code>" not in text
    assert "| `test_it.py::test_ranks_differ[world2]` | step | 0 | 16 B |" in text


WORLD = """
    import pytest

    @pytest.mark.world_size(1)
    def test_it(world): pass
"""


def test_a_job_summary_that_can_not_be_written_is_a_warning(pytester, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path))
    pytester.makepyfile(WORLD)
    pytester.makeini("[pytest]\nshardcheck_junit_properties = false\n")
    result = pytester.runpytest("-p", "no:randomly", "--junit-xml=junit.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["shardcheck: the job summary * could not be written: *"])
    # A file that is held against the schema of xunit2 can have none.
    assert "property" not in (pytester.path / "junit.xml").read_text()


def test_a_session_without_worlds_writes_no_job_summary_and_says_nothing(pytester, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(pytester.path / "summary"))
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest("-p", "no:randomly", "--shardcheck-report", "--junit-xml=junit.xml")
    assert result.ret == 0
    assert not (pytester.path / "summary").exists()
    assert "shardcheck:" not in result.stdout.str()
    assert "property" not in (pytester.path / "junit.xml").read_text()
