"""Options and ini values: default, ini, command line, and what is refused."""

from __future__ import annotations

import sys
from fractions import Fraction
from pathlib import Path

import pytest

from pytest_shardcheck.plugin import SETTINGS
from pytest_shardcheck.plugin.settings import Settings

START = "fork" if sys.platform == "linux" else "spawn"


def _settings(pytester: pytest.Pytester, *args: str, ini: str = "") -> Settings:
    pytester.makeini(f"[pytest]\n{ini}\n")
    return pytester.parseconfigure(*args).stash[SETTINGS]


def test_the_defaults(pytester: pytest.Pytester) -> None:
    assert _settings(pytester) == Settings(
        timeout_s=120.0, start=START, threads=1, world_size=(), report=False, require_cuda=False,
        snapshot_dir="snapshots", snapshot_variant="{device}", snapshot_tolerance=None,
    )  # fmt: skip


TOLD = [
    ("timeout_s", "shardcheck_timeout = 7.5", 7.5, ["--shardcheck-timeout=9"], 9.0),
    ("timeout_s", "shardcheck_timeout = 7", 7.0, ["--shardcheck-timeout", "0.5"], 0.5),
    ("start", "shardcheck_start = spawn", "spawn", [f"--shardcheck-start={START}"], START),
    ("report", "shardcheck_report = true", True, ["--shardcheck-report"], True),
    ("require_cuda", "shardcheck_require_cuda = yes", True, ["--require-cuda"], True),
    (
        "junit_properties",
        "shardcheck_junit_properties = no",
        False,
        ["-o", "shardcheck_junit_properties=yes"],
        True,
    ),
    ("threads", "shardcheck_threads = 3", 3, ["-o", "shardcheck_threads=2"], 2),
    ("world_size", "shardcheck_world_size = 2 4", (2, 4), ["-o", "shardcheck_world_size=3"], (3,)),
    (
        "snapshot_tolerance",
        "shardcheck_snapshot_tolerance = 4 kB",
        4000,
        ["--shardcheck-snapshot-tolerance=0.5%"],
        Fraction(1, 200),
    ),
    (
        "snapshot_tolerance",
        "shardcheck_snapshot_tolerance = 1 %",
        Fraction(1, 100),
        ["--shardcheck-snapshot-tolerance=0"],
        0,
    ),
    (
        "snapshot_dir",
        "shardcheck_snapshot_dir = kept/here/",
        "kept/here",
        ["-o", "shardcheck_snapshot_dir=kept"],
        "kept",
    ),
    (
        "snapshot_variant",
        "shardcheck_snapshot_variant = {gpu}-{torch}",
        "{gpu}-{torch}",
        ["-o", "shardcheck_snapshot_variant="],
        "",
    ),
]


@pytest.mark.parametrize("told", TOLD, ids=[told[0] for told in TOLD])
def test_ini_beats_the_default_and_the_command_line_beats_ini(
    pytester: pytest.Pytester, told: tuple[str, str, object, list[str], object]
) -> None:
    field, ini, by_ini, args, by_args = told

    assert getattr(_settings(pytester, ini=ini), field) == by_ini
    assert getattr(_settings(pytester, *args), field) == by_args
    assert getattr(_settings(pytester, *args, ini=ini), field) == by_args


def test_the_path_of_the_recording(pytester: pytest.Pytester) -> None:
    ini = "shardcheck_json = by-ini.json"
    assert _settings(pytester).json is None
    assert _settings(pytester, ini="shardcheck_json =").json is None
    assert _settings(pytester, ini=ini).json == pytester.path / "by-ini.json"
    for args in (["--shardcheck-json=/tmp/a.json"], ["--shardcheck-json", "/tmp/a.json"]):
        assert _settings(pytester, *args, ini=ini).json == Path("/tmp/a.json")


@pytest.mark.parametrize("field", ["html", "trace"])
def test_paths_are_seen_from_whoever_wrote_them(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    told = pytester.mkdir("told")
    monkeypatch.chdir(told)
    ini = f"shardcheck_{field} = out/of-ini"
    assert getattr(_settings(pytester), field) is None
    assert not _settings(pytester).wants_timelines
    pytester.makeini(f"[pytest]\n{ini}\n")
    config = pytester.parseconfigure("--rootdir", str(pytester.path), "-c", "../tox.ini")
    settings = config.stash[SETTINGS]
    assert getattr(settings, field) == pytester.path / "out" / "of-ini"
    assert settings.wants_timelines
    args = [f"--shardcheck-{field}=out/told", "-c", "../tox.ini"]
    config = pytester.parseconfigure("--rootdir", str(pytester.path), *args)
    assert getattr(config.stash[SETTINGS], field) == told / "out" / "told"
    config = pytester.parseconfigure(f"--shardcheck-{field}=/there", "-c", "../tox.ini")
    assert str(getattr(config.stash[SETTINGS], field)) == "/there"


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        (
            "html",
            "there",
            "--shardcheck-html: .*there can't be written: it is a folder",
        ),
        ("trace", "there.txt", "--shardcheck-trace: .* can't be written: .*there.txt is no folder"),
    ],
)
def test_a_path_of_the_other_kind_is_refused(
    pytester: pytest.Pytester, field: str, given: str, message: str
) -> None:
    pytester.mkdir("there")
    pytester.maketxtfile(there="")
    with pytest.raises(pytest.UsageError, match=message):
        _settings(pytester, f"--shardcheck-{field}={given}")


@pytest.mark.parametrize("field", ["report", "require_cuda"])
def test_an_ini_flag_that_is_off_is_off(pytester: pytest.Pytester, field: str) -> None:
    assert getattr(_settings(pytester, ini=f"shardcheck_{field} = false"), field) is False


def test_addopts_in_ini_and_environment_count(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--shardcheck-start=spawn")
    settings = _settings(pytester, ini="addopts = --shardcheck-timeout=3")
    assert (settings.timeout_s, settings.start) == (3.0, "spawn")


def test_pyproject_values_count(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml(
        """
        [tool.pytest]
        shardcheck_timeout = "7"
        shardcheck_threads = "2"
        shardcheck_world_size = ["2", "4"]
        shardcheck_report = true
        """
    )
    settings = pytester.parseconfigure().stash[SETTINGS]
    assert (settings.timeout_s, settings.threads) == (7.0, 2)
    assert (settings.world_size, settings.report) == ((2, 4), True)


def test_a_number_in_pyproject_is_a_number(pytester: pytest.Pytester) -> None:
    # pytest 9 reads [tool.pytest] with TOML's own types.
    pytester.makepyprojecttoml("[tool.pytest]\nshardcheck_timeout = 7\nshardcheck_threads = 2\n")
    pytester.makepyfile("def test_it(): pass")

    result = pytester.runpytest("-q")

    text = result.stdout.str() + result.stderr.str()
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    assert result.ret == 0 or "shardcheck_t" in text


REFUSED_ARGS = [
    ("--shardcheck-timeout=soon", "--shardcheck-timeout", "'soon'", "seconds above 0"),
    ("--shardcheck-timeout=0", "--shardcheck-timeout", "'0'", "seconds above 0"),
    ("--shardcheck-timeout=-3", "--shardcheck-timeout", "'-3'", "seconds above 0"),
    ("--shardcheck-timeout=nan", "--shardcheck-timeout", "'nan'", "seconds above 0"),
    ("--shardcheck-timeout=inf", "--shardcheck-timeout", "'inf'", "seconds above 0"),
    ("--shardcheck-start=thread", "--shardcheck-start", "'thread'", "fork"),
    ("--shardcheck-snapshot-tolerance=2x", "--shardcheck-snapshot-tolerance", "'2x'", "1%"),
]
REFUSED_INI = [
    ("shardcheck_timeout = 2 minutes", "ini shardcheck_timeout", "'2 minutes'", "above 0"),
    ("shardcheck_timeout = 0", "ini shardcheck_timeout", "'0'", "above 0"),
    ("shardcheck_start = thread", "ini shardcheck_start", "'thread'", "fork or spawn"),
    ("shardcheck_threads = 0", "ini shardcheck_threads", "'0'", "whole number above 0"),
    ("shardcheck_threads = all", "ini shardcheck_threads", "'all'", "whole number above 0"),
    ("shardcheck_threads = 1.5", "ini shardcheck_threads", "'1.5'", "whole number above 0"),
    ("shardcheck_snapshot_tolerance = 200%", "ini shardcheck_snapshot_tolerance", "", "1%"),
    ("shardcheck_snapshot_dir = /tmp", "ini shardcheck_snapshot_dir", "'/tmp'", "below rootdir"),
    ("shardcheck_snapshot_dir = ../x", "ini shardcheck_snapshot_dir", "'../x'", "below rootdir"),
    ("shardcheck_snapshot_dir = .", "ini shardcheck_snapshot_dir", "'.'", "below rootdir"),
    ("shardcheck_snapshot_variant = {host}", "ini shardcheck_snapshot_variant", "{host}", "{gpu}"),
    ("shardcheck_world_size = 2 x", "ini shardcheck_world_size", "'x'", "whole number above 0"),
    ("shardcheck_world_size = -1", "ini shardcheck_world_size", "'-1'", "whole number above 0"),
    ("shardcheck_world_size = 2,4", "ini shardcheck_world_size", "'2,4'", "whole number above 0"),
]


@pytest.mark.parametrize(("arg", "source", "given", "accepted"), REFUSED_ARGS)
def test_a_wrong_option_is_a_usage_error(
    pytester: pytest.Pytester, arg: str, source: str, given: str, accepted: str
) -> None:
    _is_refused(pytester.runpytest(arg), source, given, accepted)


@pytest.mark.parametrize(("ini", "source", "given", "accepted"), REFUSED_INI)
def test_a_wrong_ini_value_is_a_usage_error(
    pytester: pytest.Pytester, ini: str, source: str, given: str, accepted: str
) -> None:
    pytester.makeini(f"[pytest]\n{ini}\n")
    _is_refused(pytester.runpytest(), source, given, accepted)


def _is_refused(result: pytest.RunResult, source: str, given: str, accepted: str) -> None:
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    message = result.stderr.str()
    assert source in message
    assert given in message
    assert accepted in message
    assert "Traceback" not in message


def test_a_repeated_default_size_is_one_world(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nshardcheck_world_size = 2 2\n")
    pytester.makepyfile("def test_it(world): pass")

    result = pytester.runpytest("--collect-only", "-q")

    result.stdout.fnmatch_lines(["*::test_it?world2?", "1 test collected*"])


def test_help_names_every_option_and_ini_value(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--help")
    text = result.stdout.str()
    for name in (
        "--shardcheck-timeout=SECONDS",
        "--shardcheck-start={fork,spawn}",
        "--shardcheck-report",
        "--shardcheck-json=PATH",
        "--require-cuda",
        "--shardcheck-snapshot-tolerance=AMOUNT",
        "shardcheck_snapshot_dir",
        "shardcheck_snapshot_variant",
        "shardcheck_timeout",
        "shardcheck_start",
        "shardcheck_report",
        "shardcheck_json",
        "shardcheck_junit_properties",
        "shardcheck_require_cuda",
        "shardcheck_world_size",
        "shardcheck_threads",
    ):
        assert name in text, name


WORLDS = """
import time

import pytest
import torch

@pytest.mark.world_size(2)
def test_threads(world):
    assert torch.get_num_threads() == 2

def test_default_world(shardcheck, world):
    assert world.size == 2
    with shardcheck.measure(torch.nn.Linear(64, 64, bias=False)):
        pass

@pytest.mark.world_size(2)
def test_hangs(world):
    while world.rank == 1:
        time.sleep(0.01)

@pytest.mark.world_size(2, timeout=60)
def test_may_take_longer_than_the_session_says(world):
    time.sleep(1.2)
"""


def test_the_values_reach_the_ranks(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        """
        [pytest]
        shardcheck_threads = 2
        shardcheck_world_size = 2
        shardcheck_timeout = 1
        shardcheck_report = true
        """
    )
    pytester.makepyfile(WORLDS)

    result = pytester.runpytest_subprocess("-p", "no:randomly")

    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_hangs?world2?*",
            "*rank 1*",
            "*shardcheck: what each rank held and sent*",
            "*::test_default_world?world2?",
            "*step*0-1*16.4 kB*",
        ]
    )
    text = result.stdout.str()
    assert "in test_hangs" in text, "the stack of the rank that hangs"
    assert "--shardcheck-timeout" in text
