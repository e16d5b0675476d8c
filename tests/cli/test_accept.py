"""`shardcheck accept`: the snapshots of a CI run, written here."""

from __future__ import annotations

import json

import pytest

from pytest_shardcheck.cli import main
from pytest_shardcheck.snapshots import Document
from pytest_shardcheck.vocabulary.files import write_whole
from pytest_shardcheck.vocabulary.records import WorldRecord
from pytest_shardcheck.vocabulary.snapshots import SnapshotRecord
from pytest_shardcheck.vocabulary.specs import WorldSpec


def snapshot(file, outcome, value=1, name="step"):
    return SnapshotRecord(
        name=name, file=file, outcome=outcome, ranks={"ranks 0-1": value}, torch="2.14.0"
    )


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("")
    return tmp_path


def report(project, *snapshots, nodeid="tests/test_a.py::test_x[world2-cuda]", **changes):
    records = [
        WorldRecord(nodeid=nodeid, spec=WorldSpec(size=2), outcome="failed", snapshots=snapshots)
    ]
    data = {"schema": 1, "environment": {}, "tests": [r.to_json() for r in records], **changes}
    path = project / "report.json"
    path.write_text(json.dumps(data))
    return str(path)


PLACE = "snapshots/tests/test_a/test_{}[world2-cuda]@cuda.json"
SAME, OTHER, NEW = map(PLACE.format, ("same", "other", "new"))


def written(project):
    files = (project / "snapshots").rglob("*")
    return {p.relative_to(project).as_posix(): p.read_text() for p in files if p.is_file()}


def test_every_file_is_what_the_run_would_have_written(project, capsys):
    old = Document(torch="2.13.0", snapshots={"step": {"ranks 0-1": 0}}).to_text()
    write_whole(project / OTHER, old)
    path = report(
        project,
        snapshot(SAME, "matched", {"b": 2, "a": [1]}),
        snapshot(OTHER, "different", 5),
        snapshot(OTHER, "matched", 6, name="more"),
        snapshot(NEW, "missing", 7),
    )
    assert main(["accept", path, "--only-failing"]) == 0
    assert capsys.readouterr().out == f"{NEW}\n{OTHER}\n2 files written\n"
    assert written(project) == {
        NEW: Document(torch="2.14.0", snapshots={"step": {"ranks 0-1": 7}}).to_text(),
        OTHER: Document(
            torch="2.14.0", snapshots={"step": {"ranks 0-1": 5}, "more": {"ranks 0-1": 6}}
        ).to_text(),
    }
    assert main(["accept", path]) == 0
    assert json.loads(written(project)[SAME])["snapshots"]["step"]["ranks 0-1"] == {
        "a": [1], "b": 2,
    }  # fmt: skip


def test_a_snapshot_that_no_rank_takes_any_more_leaves_the_file(project):
    both = {"step": {"ranks 0-1": 1}, "gone": {"ranks 0-1": 1}}
    write_whole(project / SAME, Document(torch="2.13.0", snapshots=both).to_text())
    gone = SnapshotRecord(name="gone", file=SAME, outcome="different", ranks={}, torch="2.14.0")
    path = report(project, snapshot(SAME, "matched"), gone)
    assert main(["accept", path, "--only-failing"]) == 0
    step = Document(torch="2.14.0", snapshots={"step": {"ranks 0-1": 1}})
    assert written(project) == {SAME: step.to_text()}


def test_nothing_that_failed_is_nothing_written(project, capsys):
    assert main(["accept", report(project, snapshot(SAME, "matched")), "--only-failing"]) == 0
    assert capsys.readouterr().out == "0 files written\n"
    assert written(project) == {}


@pytest.mark.parametrize("file", ["/tmp/x.json", "../x.json", "snapshots/../../x.json", "a.py"])
def test_nothing_is_written_outside_of_the_project(project, capsys, file):
    path = report(project, snapshot(NEW, "missing"), snapshot(file, "missing"))
    assert main(["accept", path]) == 2
    assert f"{file!r} is no place for a snapshot" in capsys.readouterr().err
    assert written(project) == {}


def test_a_run_of_another_project_is_refused(project, capsys):
    path = report(project, snapshot(NEW, "missing"), nodeid="elsewhere/test_a.py::test_x")
    assert main(["accept", path]) == 2
    assert "elsewhere/test_a.py was tested, and is not in" in capsys.readouterr().err
    below = project / "elsewhere"
    (below / "elsewhere").mkdir(parents=True)
    (below / "elsewhere/test_a.py").write_text("")
    assert main(["accept", path, "--rootdir", str(below)]) == 0
    assert (below / NEW).exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "JSON is expected"),
        ("[]", "the JSON of `pytest --shardcheck-json=PATH` is expected"),
        ('{"tests": 3}', "the JSON of `pytest --shardcheck-json=PATH` is expected"),
        ('{"tests": []}', "no test of this run took a snapshot and ended well"),
        ('{"tests": [{"nodeid": "a.py::x", "snapshots": [{"name": 1}]}]}', "can't be read"),
        ('{"tests": [{"nodeid": "a.py::x", "snapshots": [3]}]}', "can't be read"),
    ],
)
def test_what_is_no_report_is_refused(project, capsys, text, said):
    (project / "report.json").write_text(text)
    assert main(["accept", "report.json"]) == 2
    assert said in capsys.readouterr().err


def test_a_report_that_is_not_there(project, capsys):
    assert main(["accept", "none.json"]) == 2
    assert "none.json: it can't be read" in capsys.readouterr().err


def test_ranks_that_nobody_can_read_are_refused(project, capsys):
    broken = SnapshotRecord(name="n", file=NEW, outcome="missing", ranks={"all": 1})
    assert main(["accept", report(project, broken)]) == 2
    assert "'all' names no ranks" in capsys.readouterr().err
    assert written(project) == {}
