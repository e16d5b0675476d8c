"""Every private pytest interface that we use, each with the reason that there is no public one.

``tests/test_compat.py`` fails by name when a pytest version changes one of them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)
from _pytest.capture import CaptureManager
from _pytest.tmpdir import TempPathFactory
from _pytest.unittest import TestCaseFunction, UnitTestCase

__all__ = [
    "ExceptionChainRepr",
    "TestCaseFunction",
    "UnitTestCase",
    "WorldTestCaseFunction",
    "chain_of",
    "configure",
    "controller_has_left",
    "empty_exception_queues",
    "file_location",
    "is_subtest_report",
    "live_log_handlers",
    "native_traceback",
    "new_tmp_path",
    "redirect_tmp_path_factory",
    "run_ordinary_protocol",
    "start_fresh_capture",
    "start_session",
    "uncaptured",
]


def configure(config: pytest.Config) -> None:
    """Run ``pytest_configure`` of every plugin: what ``pytest.main`` does before a session."""
    config._do_configure()


def start_session(config: pytest.Config) -> pytest.Session:
    """Return a started session without running one: pytest only offers the whole main loop."""
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    return session


def start_fresh_capture(config: pytest.Config, method: Any) -> list[int]:
    """Give the capture manager of a process that captured nothing so far its own files.

    Returns the descriptors of the files that hold captured stdout and stderr (none where ``method``
    captures no descriptors). There is no public way to start capturing after start-up.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    assert isinstance(manager, CaptureManager), "a child is started with --capture=no"
    manager._method = method  # type: ignore[misc]  # registering another manager costs 2 ms
    manager.stop_global_capturing()
    manager.start_global_capturing()
    manager.suspend_global_capture()
    capturing = manager._global_capturing
    files = [getattr(stream, "tmpfile", None) for stream in (capturing.out, capturing.err)]  # type: ignore[union-attr]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return [file.fileno() for file in files if file is not None]
    return []


def uncaptured(config: pytest.Config) -> contextlib.AbstractContextManager[None]:
    """Return the context in which the session's own terminal is written to during a test.

    What was captured so far stays captured. Live logs do it so; there is no public way.
    """
    manager = config.pluginmanager.getplugin("capturemanager")
    if not isinstance(manager, CaptureManager):
        return contextlib.nullcontext()
    return manager.global_and_fixture_disabled()


def new_tmp_path(config: pytest.Config, name: str) -> Path:
    """Return a new numbered directory as the ``tmp_path`` fixture makes it, without a fixture."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.mktemp(name, numbered=True)


def base_temporary_directory(config: pytest.Config) -> Path:
    """Return where the session makes its temporary directories, without a fixture."""
    factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
    return factory.getbasetemp()


def redirect_tmp_path_factory(config: pytest.Config, base: Path) -> None:
    """Have ``tmp_path_factory`` make its directories in ``base``, which must not exist yet."""
    config._tmp_path_factory = TempPathFactory(  # type: ignore[attr-defined]
        base, 3, "all", config.trace.get("tmpdir"), _ispytest=True
    )


def live_log_handlers(config: pytest.Config) -> list[logging.Handler]:
    """Return the handlers of ``--log-cli`` and ``--log-file``, those that write anywhere.

    Not through a logger: pytest's other handlers would take a rank's record for the session's own.
    """
    plugin = config.pluginmanager.getplugin("logging-plugin")
    if plugin is None:
        return []
    handlers: list[logging.Handler] = []
    if isinstance(plugin.log_cli_handler, logging.StreamHandler):
        handlers.append(plugin.log_cli_handler)
    if plugin.log_file_handler.baseFilename != os.devnull:
        handlers.append(plugin.log_file_handler)
    return handlers


def controller_has_left(config: pytest.Config) -> Callable[[], bool]:
    """Return what tells, in a worker of xdist, that its controller was interrupted or killed.

    execnet lets a busy worker work for five more seconds; xdist has no hook for it.
    """
    channels = [
        plugin.channel
        for plugin in config.pluginmanager.get_plugins()
        if type(plugin).__name__ == "WorkerInteractor"
    ]

    def has_left() -> bool:
        for channel in channels:
            try:
                channel.waitclose(0)
            except channel.TimeoutError:
                continue
            except Exception:  # however it was closed, it is
                return True
            return True
        return False

    return has_left


def empty_exception_queues(config: pytest.Config) -> None:
    """Forget what pytest noted of unraisable and thread exceptions, or a fork reports it again."""
    from _pytest.threadexception import thread_exceptions
    from _pytest.unraisableexception import unraisable_exceptions

    keys: tuple[Any, ...] = (thread_exceptions, unraisable_exceptions)
    for key in keys:
        config.stash[key].clear()


def run_ordinary_protocol(item: pytest.Item) -> None:
    """Run ``pytest_runtest_protocol`` with pytest's own implementation and everyone's wrappers.

    A foreign implementation would rerun a rank alone (rerunfailures) or send it elsewhere.
    """
    from _pytest import runner

    hook = item.config.hook.pytest_runtest_protocol
    foreign = {
        impl.plugin
        for impl in hook.get_hookimpls()
        if not (impl.hookwrapper or impl.wrapper) and impl.plugin is not runner
    }
    ordinary = item.config.pluginmanager.subset_hook_caller("pytest_runtest_protocol", foreign)
    ordinary(item=item, nextitem=None)


def is_subtest_report(report: pytest.TestReport) -> bool:
    """Tell whether a report is of a subtest; pytest 9 has them, before it none arrive."""
    return type(report).__name__ in ("SubtestReport", "SubTestReport")


def subtest_name(data: Mapping[str, Any]) -> str:
    """Return what tells a subtest of a serialised report apart, as pytest prints it.

    Restoring the report would show the ``repr`` of the values' ``repr``.
    """
    context = data.get("_subtest.context", {})
    message = [f"[{context['msg']}]"] if context.get("msg") else []
    values = ", ".join(f"{name}={value}" for name, value in context.get("kwargs", {}).items())
    return " ".join([*message, *([f"({values})"] if values else [])]) or "(without a name)"


class WorldTestCaseFunction(TestCaseFunction):
    """A ``unittest`` method under an id of its own: pytest can't parametrize those."""

    @classmethod
    def of(cls, item: TestCaseFunction, suffix: str) -> WorldTestCaseFunction:
        """Return a copy of ``item`` that is called ``name[suffix]``."""
        clone = cls.from_parent(
            item.parent, name=f"{item.name}[{suffix}]", originalname=item.originalname
        )
        if not clone.nodeid.endswith("]"):
            # Since 9.2 a function's id comes from its callspec, which a method can't have.
            clone._id = clone._id.with_params(suffix)
        return clone

    def _getinstance(self) -> Any:
        assert isinstance(self.parent, UnitTestCase)
        return self.parent.obj(self.originalname)


def native_traceback(lines: Iterable[str]) -> ReprTraceback:
    """Return text in the form that pytest prints, stores and sends over xdist as a traceback."""
    return ReprTraceback([ReprEntryNative(list(lines))], extraline=None, style="native")


def file_location(path: str, line: int, message: str) -> ReprFileLocation:
    """Return where a failure happened and the message of pytest's short summary."""
    return ReprFileLocation(path, line, message)


def chain_of(
    elements: Sequence[tuple[ReprTraceback, ReprFileLocation | None, str | None]],
    sections: Iterable[tuple[str, str, str]] = (),
) -> ExceptionChainRepr:
    """Return a failure of several parts; the last part's location leads the short summary.

    Only this class keeps its colours and its location on the way through xdist.
    """
    representation = ExceptionChainRepr(list(elements))
    for section in sections:
        representation.addsection(*section)
    return representation


def interpreter_flags() -> list[str]:
    """Return the flags of this interpreter (-O, -W, -X ...), as multiprocessing hands them on."""
    import subprocess

    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return flags


def flush_standard_streams() -> None:
    """Write out what Python still buffers: ``os._exit`` does not."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()  # type: ignore[union-attr]
