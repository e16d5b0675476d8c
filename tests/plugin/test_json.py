"""``--shardcheck-json``: where it is written, and what it says of a session that did not end."""

from __future__ import annotations

import json

import pytest

from pytest_shardcheck.plugin import ending, outputs
from pytest_shardcheck.reports.recording import read

PASSES = "def test_it(): pass"


def run(pytester: pytest.Pytester, *args: str, **files: str) -> pytest.RunResult:
    pytester.makepyfile(**(files or {"test_it": PASSES}))
    return pytester.runpytest("-p", "no:randomly", "--shardcheck-json=out.json", *args)


def test_a_session_without_worlds_records_none(pytester: pytest.Pytester) -> None:
    result = run(pytester)
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"shardcheck: 0 world tests recorded in {pytester.path}/out.json"])
    recording = read(pytester.path / "out.json")
    assert (recording.tests, recording.incomplete) == ((), "")
    assert recording.environment == outputs.environment()
    assert recording.environment["torch"][0].isdigit()


INTERRUPTED = """
    import pytest
    def test_one(): {}
    def test_two(): pass
"""
ENDS = {
    "exit": ("pytest.exit('enough', returncode=0)", [], "ended by pytest.exit"),
    "interrupt": ("raise KeyboardInterrupt", [], "interrupted"),
    "maxfail": ("assert False", ["-x"], "stopping after 1 failures"),
    "uncollected": ("pass\n    raise ValueError", [], "could not collect test_it.py"),
    "beside": (
        "pass\n    raise ValueError",
        ["--continue-on-collection-errors"],
        "could not collect test_it.py",
    ),
    "internal": (
        "pass\n    def pytest_x(): pass",
        ["-p", "broken"],
        "pytest ended with an internal error",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_session_that_did_not_end_says_so(pytester: pytest.Pytester, name: str) -> None:
    body, args, why = ENDS[name]
    pytester.syspathinsert()
    pytester.makepyfile(broken="def pytest_runtest_logfinish(nodeid): raise OSError(nodeid)")
    (pytester.path / "out.json").write_text("old")
    try:
        result = run(pytester, *args, test_it=INTERRUPTED.format(body))
    except KeyboardInterrupt:
        pass
    else:
        assert f"(incomplete: {why}" in result.stdout.str() or name == "internal"
    data = json.loads((pytester.path / "out.json").read_text())
    assert data["complete"] is False
    assert why in data["incomplete"]


def test_what_runs_no_test_leaves_the_old_file(pytester: pytest.Pytester) -> None:
    (pytester.path / "out.json").write_text("old")
    for args in (["--collect-only"], ["--fixtures"], ["--setup-plan"], ["nowhere"], ["--help"]):
        run(pytester, *args)
        assert (pytester.path / "out.json").read_text() == "old", args


@pytest.mark.parametrize(
    ("path", "why"),
    [(".", "it is a folder"), ("file/out.json", "is no folder"), ("", "path of a file"),
     ("/dev/null", "no regular file")],
)  # fmt: skip
def test_a_bad_path_is_a_usage_error_before_any_test(
    pytester: pytest.Pytester, path: str, why: str
) -> None:
    (pytester.path / "file").touch()
    pytester.makepyfile("def test_it(): open('ran', 'w')")
    result = pytester.runpytest("-p", "no:randomly", f"--shardcheck-json={path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert why in result.stderr.str()
    assert "--shardcheck-json" in result.stderr.str()
    assert not (pytester.path / "ran").exists()


def test_one_path_for_two_files_is_refused(pytester: pytest.Pytester) -> None:
    args = ["--shardcheck-json=out", "--shardcheck-html=./out"]
    result = pytester.runpytest("-p", "no:randomly", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*two paths are expected, not *out for both*"])


def test_a_file_that_can_not_be_written_fails_the_session(pytester: pytest.Pytester) -> None:
    # What configure could not know: the folder became a file meanwhile.
    result = run(
        pytester,
        "--shardcheck-json=later/out.json",
        test_it="def test_it(): open('later', 'w').close()",
    )
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(["shardcheck: *later/out.json could not be written: *"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_the_ini_path_is_relative_to_the_root_and_the_option_to_where_one_stands(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]\nshardcheck_json = out/by-ini.json\n")
    folder = pytester.mkdir("folder")
    (folder / "test_it.py").write_text(PASSES)
    monkeypatch.chdir(folder)
    pytester.runpytest("-p", "no:randomly")
    pytester.runpytest("-p", "no:randomly", "--shardcheck-json=by-option.json")
    assert read(pytester.path / "out" / "by-ini.json").tests == ()
    assert read(folder / "by-option.json").tests == ()


def test_a_worker_that_crashes_is_missed(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    result = run(pytester, "-p", "xdist", "-n1", test_it="import os\ndef test_it(): os._exit(1)\n")
    assert result.ret == 1
    assert read(pytester.path / "out.json").incomplete == "a worker crashed in test_it.py::test_it"


def test_several_names_are_counted() -> None:
    assert ending._listed(["a", "b", "c"]) == "a and 2 more"


def test_an_unknown_version_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_PACKAGES", ("no-such-package-of-ours",))
    assert outputs.environment()["no-such-package-of-ours"] == "unknown"
