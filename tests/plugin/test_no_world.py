"""Who has no world test pays nothing: no torch, no process, no line in the summary."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A plugin that notes which processes a session starts, whoever starts them, and whether torch came.
WATCHER = """
import os
import sys

STARTED = []

def _note(event, args):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"):
        STARTED.append(f"{event} {args}")

sys.addaudithook(_note)

def pytest_unconfigure():
    print(f"processes: {STARTED}")
    print("torch:", "torch" in sys.modules, "numpy:", "numpy" in sys.modules)
"""

WORLD = """
import pytest

@pytest.mark.world_size(2)
@pytest.mark.max_memory(params="1 MB")
def test_world(shardcheck):
    raise AssertionError("ran")
"""
PLAIN = "def test_plain():\n    pass\n"


@pytest.fixture
def watched(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Return pytester, with the watcher at hand; no other plugin starts processes there."""
    library = pytester.mkdir("library")
    (library / "watcher.py").write_text(WATCHER, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(library))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p watcher -p pytest_shardcheck.plugin")
    return pytester


def _run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    result = pytester.runpytest_subprocess("-q", *args)
    result.stdout.fnmatch_lines(["processes: [[]]", "torch: False*"])
    assert "shardcheck:" not in result.stdout.str()
    return result


def test_importing_the_package_and_the_plugin_imports_no_torch() -> None:
    code = (
        "import sys, pytest_shardcheck, pytest_shardcheck.plugin\n"
        "print(sorted({'torch', 'numpy', 'syrupy', 'xdist'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (result.stdout, result.stderr, result.returncode) == ("[]\n", "", 0)


def test_importing_the_package_does_not_import_the_plugin() -> None:
    code = "import sys, pytest_shardcheck; print('pytest_shardcheck.plugin' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout == "False\n"


def test_a_session_without_world_tests(watched: pytest.Pytester) -> None:
    watched.makepyfile(PLAIN)
    _run(watched).assert_outcomes(passed=1)


def test_a_session_whose_world_tests_are_deselected(watched: pytest.Pytester) -> None:
    watched.makepyfile(test_world=WORLD, test_plain=PLAIN)
    _run(watched, "-k", "plain").assert_outcomes(passed=1, deselected=1)


def test_collect_only(watched: pytest.Pytester) -> None:
    watched.makepyfile(test_world=WORLD)
    result = _run(watched, "--collect-only")
    result.stdout.fnmatch_lines(["test_world.py::test_world?world2?"])


@pytest.mark.parametrize("args", [["--setup-plan"], ["--fixtures-per-test"], ["--fixtures"]])
def test_other_sessions_that_run_nothing(watched: pytest.Pytester, args: list[str]) -> None:
    watched.makepyfile(test_world=WORLD)
    assert _run(watched, *args).ret == pytest.ExitCode.OK


def test_a_wrong_marker_or_a_broken_file_ends_the_session_first(watched: pytest.Pytester) -> None:
    watched.makepyfile(
        test_world=WORLD,
        test_wrong=WORLD.replace("1 MB", "1 MX"),
        test_broken="raise RuntimeError('broken')",
    )
    result = _run(watched)
    result.assert_outcomes(errors=2)


def test_a_mark_skip_on_every_world_test(watched: pytest.Pytester) -> None:
    # pytest's own skip is decided in setup; a session of nothing else needs no torch.
    watched.makepyfile(
        WORLD.replace("import pytest", "import pytest\npytestmark = pytest.mark.skip('later')")
    )
    _run(watched).assert_outcomes(skipped=1)


def test_the_watcher_sees_a_nursery(watched: pytest.Pytester) -> None:
    # Or all of the above would pass with a watcher that sees nothing.
    watched.makepyfile(WORLD.replace("raise AssertionError", "print"))
    result = watched.runpytest_subprocess("-q")
    result.stdout.fnmatch_lines(["processes: [[]*subprocess.Popen*bootstrap.py*nursery*"])
    result.stdout.fnmatch_lines(["torch: False*"])


def test_without_the_plugin_nothing_of_ours_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLAIN)
    pytester.runpytest("-p", "no:shardcheck").assert_outcomes(passed=1)
