"""How a session ended: whether every world test that was selected has been heard of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_shardcheck.worlds.keys import IN_CHILD

if TYPE_CHECKING:
    from collections.abc import Sequence


def has_all_reports(config: pytest.Config) -> bool:
    """Tell whether this process hears of every test: no worker of xdist, and no rank."""
    return not hasattr(config, "workerinput") and IN_CHILD not in config.stash


class Ending:
    """Listens for whatever keeps tests from running; a recording says so."""

    def __init__(self) -> None:
        """Start with a session that has not collected."""
        self._collected = False
        self._uncollected: list[str] = []
        self._crashed: list[str] = []
        self._ended_by = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Note that tests are about to run: ``--fixtures`` and others don't come here."""
        self._collected = True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not be collected."""
        name = report.nodeid or "the session"
        if report.failed and name not in self._uncollected:
            self._uncollected.append(name)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the test in which a worker of xdist crashed: its report is of no phase."""
        if report.failed and report.when not in ("setup", "call", "teardown"):
            self._crashed.append(report.nodeid)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note an interrupt, ``pytest.exit`` included."""
        exited = isinstance(excinfo.value, pytest.exit.Exception)
        self._ended_by = "ended by pytest.exit" if exited else "interrupted"

    def has_run(self, session: pytest.Session) -> bool:
        """Tell whether there is a run to record: not a wrong command line, or a mere listing."""
        option = session.config.option
        listed = option.collectonly or option.setupplan
        refused = session.exitstatus == pytest.ExitCode.USAGE_ERROR
        return self._collected and not listed and not refused and has_all_reports(session.config)

    def why_incomplete(self, session: pytest.Session) -> str:
        """Say why tests may be missing; "" where none is."""
        if self._uncollected:
            return f"could not collect {_listed(self._uncollected)}"
        if stopped := session.shouldfail or session.shouldstop:
            return str(stopped) if isinstance(stopped, str) else "stopped early"
        if self._ended_by:
            return self._ended_by
        if session.exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            return "pytest ended with an internal error"
        return f"a worker crashed in {_listed(self._crashed)}" if self._crashed else ""


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - 1
    return f"{names[0]} and {rest} more" if rest else names[0]
