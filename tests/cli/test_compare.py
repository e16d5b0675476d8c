"""``shardcheck compare``: its exit code, and what it refuses."""

from __future__ import annotations

import subprocess
import sys

import pytest
from made import reading, record

from pytest_shardcheck.cli import main
from pytest_shardcheck.reports.recording import Recording, to_text


@pytest.fixture
def files(tmp_path):
    def write(**peaks):
        paths = []
        for name, peak in peaks.items():
            its = record([reading(0, live=(0, 0, peak))], "a.py::test[world1]")
            path = tmp_path / f"{name}.json"
            path.write_text(to_text(Recording(tests=(its,))))
            paths.append(str(path))
        return paths

    return write


def test_worse_ends_with_1_and_the_rest_with_0(files, capsys):
    before, after = files(before=1000, after=1010)
    assert main(["compare", before, after]) == 1
    out = capsys.readouterr().out
    assert "1,000 B  1,010 B  +1.0 %" in out
    assert main(["compare", after, before]) == 0
    assert main(["compare", before, before]) == 0
    assert main(["compare", before, after, "--tolerance", "1%"]) == 0
    assert "1 within 1%" in capsys.readouterr().out
    assert main(["compare", before, after, "--tolerance=0.9 %"]) == 1


def test_markdown(files, capsys):
    assert main(["compare", *files(before=1000, after=1010), "--markdown"]) == 1
    assert capsys.readouterr().out.startswith("**shardcheck: 1 worse, 0 better")


def test_strict_wants_every_test(tmp_path):
    paths = []
    for nodeids in (["a.py::one", "a.py::two"], ["a.py::one"]):
        paths.append(str(tmp_path / f"{len(nodeids)}.json"))
        its = Recording(tests=tuple(record([reading(0)], nodeid) for nodeid in nodeids))
        (tmp_path / f"{len(nodeids)}.json").write_text(to_text(its))
    assert main(["compare", *paths]) == 0
    assert main(["compare", *paths, "--strict"]) == 1
    assert main(["compare", *reversed(paths), "--strict"]) == 0


def test_two_recordings_without_a_common_test_show_nothing(files, tmp_path, capsys):
    (before,) = files(before=1)
    empty = tmp_path / "empty.json"
    empty.write_text(to_text(Recording()))
    assert main(["compare", before, str(empty)]) == 1
    assert "No test is in both" in capsys.readouterr().out
    assert main(["compare", str(empty), before]) == 0


@pytest.mark.parametrize("tolerance", ["1", "1 MB", "-1%", "much", "1e3%", ""])
def test_a_wrong_tolerance_is_refused(files, capsys, tolerance):
    before, after = files(before=1, after=1)
    assert main(["compare", before, after, f"--tolerance={tolerance}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("shardcheck: --tolerance: a percentage such as 1% is expected")


def test_a_file_that_is_no_recording_is_refused(files, tmp_path, capsys):
    (before,) = files(before=1)
    other = tmp_path / "other.json"
    other.write_text("{}")
    for args in ((before, str(other)), (str(other), before), (before, str(tmp_path / "none"))):
        assert main(["compare", *args]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert ("other.json is no recording" in err) or ("none can't be read" in err)


def test_a_wrong_command_line_ends_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["compare", "one"])
    assert caught.value.code == 2
    assert "after" in capsys.readouterr().err


def test_it_imports_no_torch(files):
    code = (
        "import sys; from pytest_shardcheck.cli import main; "
        f"main(['compare', *{files(before=1, after=1)!r}]); "
        "print([name for name in ('torch', 'numpy', 'syrupy', 'pytest') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.splitlines()[-1] == "[]"
