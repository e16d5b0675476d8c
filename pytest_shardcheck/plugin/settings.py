"""The options and ini values of a session, read once into one frozen object."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Final, Literal

import pytest

Start = Literal["fork", "spawn"]

_DEFAULT_TIMEOUT_S: Final = 120.0
_DEFAULT_SNAPSHOT_DIR: Final = "snapshots"
_DEFAULT_SNAPSHOT_VARIANT: Final = "{device}"
_DEFAULT_START: Final[Start] = "fork" if sys.platform == "linux" else "spawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the command line or, where it is silent, the ini file says.

    `step_summary` is GitHub's variable of the environment, as it was when the session began: tests
    may change it, and run sessions of their own.
    """

    timeout_s: float = _DEFAULT_TIMEOUT_S
    start: Start = _DEFAULT_START
    threads: int = 1
    max_ranks: int | None = None
    world_size: tuple[int, ...] = ()
    report: bool = False
    json: Path | None = None
    junit_properties: bool = True
    step_summary: Path | None = None
    require_cuda: bool = False
    snapshot_dir: str = _DEFAULT_SNAPSHOT_DIR
    snapshot_variant: str = _DEFAULT_SNAPSHOT_VARIANT
    snapshot_tolerance: int | Fraction | None = None
    html: Path | None = None
    trace: Path | None = None

    @property
    def wants_files(self) -> bool:
        """Tell whether files are written even where there is nothing to say."""
        return self.json is not None or self.wants_timelines

    @property
    def wants_timelines(self) -> bool:
        """Tell whether ranks record what they do."""
        return self.html is not None or self.trace is not None


def add_options(parser: pytest.Parser) -> None:
    """Declare the options; their defaults are None so that the ini file can apply."""
    group = parser.getgroup("shardcheck", "distributed worlds (pytest-shardcheck)")
    group.addoption(
        "--shardcheck-timeout",
        metavar="SECONDS",
        help="Longest time that a phase (setup, call, teardown) of a world may take "
        f"(ini: shardcheck_timeout; default: {_DEFAULT_TIMEOUT_S:g})",
    )
    group.addoption(
        "--shardcheck-start",
        choices=("fork", "spawn"),
        help="How ranks are started: forked from a warm process (Linux, default) or a fresh "
        "interpreter each (ini: shardcheck_start)",
    )
    group.addoption(
        "--shardcheck-max-ranks",
        metavar="N",
        help="How many ranks may run at once over all xdist workers; a test that needs more is an "
        "error (ini: shardcheck_max_ranks; default: four a core, and larger worlds run alone)",
    )
    group.addoption(
        "--shardcheck-report",
        action="store_true",
        default=None,
        help="Print a table of what every world measured, per rank (ini: shardcheck_report)",
    )
    group.addoption(
        "--shardcheck-json",
        metavar="PATH",
        help="Write what became of every world test, with all readings, to this file "
        "(ini: shardcheck_json)",
    )
    group.addoption(
        "--require-cuda",
        action="store_true",
        default=None,
        help="Fail the tests marked `cuda` that would be skipped (ini: shardcheck_require_cuda)",
    )
    group.addoption(
        "--shardcheck-snapshot-tolerance",
        metavar="AMOUNT",
        help="How far the bytes of a snapshot may be from its recording: a share (1%%) or a size "
        "(ini: shardcheck_snapshot_tolerance; default: 0 on the CPU, 1%% on CUDA)",
    )
    group.addoption(
        "--shardcheck-html",
        metavar="PATH",
        help="Write one page that shows what every world did, over its operations "
        "(ini: shardcheck_html)",
    )
    group.addoption(
        "--shardcheck-trace",
        metavar="DIR",
        help="Write the same as a trace of each world, for Perfetto or chrome://tracing "
        "(ini: shardcheck_trace)",
    )
    parser.addini("shardcheck_timeout", "Default of --shardcheck-timeout, in seconds")
    parser.addini("shardcheck_start", "Default of --shardcheck-start: fork or spawn")
    parser.addini("shardcheck_max_ranks", "Default of --shardcheck-max-ranks")
    parser.addini("shardcheck_report", "Default of --shardcheck-report", type="bool", default=False)
    parser.addini(
        "shardcheck_json", "Default of --shardcheck-json, relative to the root folder", default=""
    )
    parser.addini(
        "shardcheck_junit_properties",
        "Add the largest figures of a test to its properties in a JUnit file (default: true)",
        type="bool",
        default=True,
    )
    parser.addini(
        "shardcheck_require_cuda", "Default of --require-cuda", type="bool", default=False
    )
    parser.addini(
        "shardcheck_world_size",
        "World sizes of tests that use our fixtures without a world_size marker",
        type="args",
        default=[],
    )
    parser.addini("shardcheck_snapshot_tolerance", "Default of --shardcheck-snapshot-tolerance")
    parser.addini(
        "shardcheck_snapshot_dir",
        f"Where snapshots lie, from rootdir (default: {_DEFAULT_SNAPSHOT_DIR})",
    )
    parser.addini(
        "shardcheck_snapshot_variant",
        "What a snapshot's file is kept apart by: text with {device}, {gpu}, {torch} "
        f"(default: {_DEFAULT_SNAPSHOT_VARIANT})",
        default=_DEFAULT_SNAPSHOT_VARIANT,
    )
    parser.addini("shardcheck_html", "Default of --shardcheck-html, from the ini file's folder")
    parser.addini("shardcheck_trace", "Default of --shardcheck-trace, from the ini file's folder")
    parser.addini("shardcheck_threads", "Intra-op threads of each rank (default: 1)")


def read_settings(config: pytest.Config) -> Settings:
    """Return the session's settings.

    Raises:
        pytest.UsageError: A value is not of its kind; the message names where it came from.
    """
    return Settings(
        timeout_s=_timeout(config),
        start=_start(config),
        threads=_count(config.getini("shardcheck_threads") or "1", "ini shardcheck_threads"),
        max_ranks=_max_ranks(config),
        world_size=tuple(
            _count(text, "ini shardcheck_world_size")
            for text in config.getini("shardcheck_world_size")
        ),
        report=_flag(config, "shardcheck_report", "shardcheck_report"),
        json=_path(config, "shardcheck_json", "file"),
        junit_properties=config.getini("shardcheck_junit_properties"),
        step_summary=Path(summary) if (summary := os.environ.get("GITHUB_STEP_SUMMARY")) else None,
        require_cuda=_flag(config, "require_cuda", "shardcheck_require_cuda"),
        snapshot_dir=_snapshot_dir(config),
        snapshot_variant=_snapshot_variant(config),
        snapshot_tolerance=_snapshot_tolerance(config),
        html=_path(config, "shardcheck_html", "file"),
        trace=_path(config, "shardcheck_trace", "folder"),
    )


def _given(config: pytest.Config, name: str) -> tuple[str | None, str]:
    """Return a value as text with the place that gave it; the command line wins."""
    value = config.getoption(name)
    if value is not None:
        return str(value), "--" + name.replace("_", "-")
    return config.getini(name) or None, f"ini {name}"


def _path(config: pytest.Config, name: str, kind: Literal["file", "folder"]) -> Path | None:
    """Return a path as seen from whoever wrote it: the invocation, or the ini file."""
    text, source = _given(config, name)
    if text is None:
        return None
    if not text.strip():
        raise pytest.UsageError(f"{source}: the path of a {kind} is expected, not {text!r}")
    base = config.invocation_params.dir if config.getoption(name) else _folder_of_ini(config)
    return base / Path(text).expanduser()


def _folder_of_ini(config: pytest.Config) -> Path:
    return config.inipath.parent if config.inipath is not None else config.rootpath


def _flag(config: pytest.Config, option: str, ini: str) -> bool:
    given = config.getoption(option)
    return bool(config.getini(ini)) if given is None else bool(given)


def _timeout(config: pytest.Config) -> float:
    text, source = _given(config, "shardcheck_timeout")
    if text is None:
        return _DEFAULT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise pytest.UsageError(f"{source}: a number of seconds above 0 is expected, not {text!r}")
    return seconds


def _start(config: pytest.Config) -> Start:
    text, source = _given(config, "shardcheck_start")
    if text is None:
        return _DEFAULT_START
    if text == "spawn":
        return "spawn"
    if text != "fork":
        raise pytest.UsageError(f"{source}: fork or spawn is expected, not {text!r}")
    if sys.platform != "linux":
        raise pytest.UsageError(f"{source}: fork works on Linux only; use spawn")
    return "fork"


def _max_ranks(config: pytest.Config) -> int | None:
    text, source = _given(config, "shardcheck_max_ranks")
    return None if text is None else _count(text, source)


def _snapshot_dir(config: pytest.Config) -> str:
    text = str(config.getini("shardcheck_snapshot_dir") or _DEFAULT_SNAPSHOT_DIR)
    path = PurePath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise pytest.UsageError(
            f"ini shardcheck_snapshot_dir: a directory below rootdir is expected, not {text!r}"
        )
    return path.as_posix()


def _snapshot_variant(config: pytest.Config) -> str:
    text = str(config.getini("shardcheck_snapshot_variant"))
    if text == _DEFAULT_SNAPSHOT_VARIANT:
        return text
    from pytest_shardcheck.snapshots.layout import check_variant
    from pytest_shardcheck.vocabulary.errors import UsageError

    try:
        return check_variant(text)
    except UsageError as error:
        raise pytest.UsageError(f"ini shardcheck_snapshot_variant: {error}") from None


def _snapshot_tolerance(config: pytest.Config) -> int | Fraction | None:
    text, source = _given(config, "shardcheck_snapshot_tolerance")
    if text is None:
        return None
    from pytest_shardcheck.expectations.values import parse_tolerance
    from pytest_shardcheck.vocabulary.errors import UsageError
    from pytest_shardcheck.vocabulary.units import parse_size

    try:
        return parse_tolerance(int(text) if text.isdecimal() else text, parse_size)
    except UsageError as error:
        raise pytest.UsageError(f"{source}: {error}") from None


def _count(text: str, source: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise pytest.UsageError(f"{source}: a whole number above 0 is expected, not {text!r}")
    return number
