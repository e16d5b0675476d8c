"""The pytest plugin: thin hooks that read settings, call one function, hand the result to pytest.

Loading it imports no torch, and a session without world tests starts no process.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_shardcheck.plugin import collection, cuda
from pytest_shardcheck.plugin.fixtures import device_mesh, process_group, shardcheck, world
from pytest_shardcheck.plugin.settings import Settings, add_options, read_settings
from pytest_shardcheck.plugin.summary import Summary, attach
from pytest_shardcheck.vocabulary.errors import DeadRankError, HarnessError, UsageError
from pytest_shardcheck.worlds.child import IN_CHILD, NODEID

if TYPE_CHECKING:
    from pytest_shardcheck.plugin.launching import Launching
    from pytest_shardcheck.plugin.phases import WorldPhases

__all__ = ["device_mesh", "process_group", "shardcheck", "world"]

SETTINGS: Final = pytest.StashKey[Settings]()
LAUNCHING: Final[pytest.StashKey[Launching]] = pytest.StashKey()
PHASES: Final[pytest.StashKey[WorldPhases]] = pytest.StashKey()

# As it is when pytest loads its plugins: before conftests and test modules add their folders.
_SYS_PATH: Final = tuple(sys.path)

_MARKERS: Final = (
    "world_size(*sizes, backend, device, mesh, timeout): run on that many ranks, one test a size",
    "memory(params, grads, optimizer, buffers, state, ...): exact bytes each rank holds at rest",
    "max_memory(params, grads, optimizer, buffers, state, ...): ceilings on them",
    "cuda(devices, memory, capability): GPU-only; skipped where CUDA is absent or too small",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini values."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings and declare the markers."""
    config.stash[SETTINGS] = read_settings(config)
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)
    if IN_CHILD not in config.stash:
        config.pluginmanager.register(_Session(config), "shardcheck-session")


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each world."""
    collection.parametrize(metafunc, metafunc.config.stash[SETTINGS].world_size)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Attach worlds and expectations to what was collected; a wrong marker is its error."""
    report = yield
    if report.passed:
        try:
            sizes = collector.config.stash[SETTINGS].world_size
            report.result = collection.prepare(report.result, sizes)
        except UsageError as error:
            report.outcome = "failed"
            report.longrepr = str(error)
            report.result = []
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None]:
    """Heed the markers that other hooks add: a folder's conftest often marks its tests so."""
    for item in items:
        # xdist's loadgroup changes ids: the processes that run ranks know an item by this one.
        item.stash[NODEID] = item.nodeid
    yield
    try:
        collection.prepare_again(items)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


class _Session:
    """The hooks of the process that runs the session; ranks and their nursery have none of them."""

    def __init__(self, config: pytest.Config) -> None:
        self._summary = Summary()
        config.pluginmanager.register(_NeverXfailTheDead(), "shardcheck-never-xfail-the-dead")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        # Not when collection ends: --fixtures and others collect, and run nothing.
        config = session.config
        errors = session.testsfailed and not config.option.continue_on_collection_errors
        if errors or config.option.collectonly or config.option.setupplan:
            return
        cuda.decide(session.items, require=config.stash[SETTINGS].require_cuda)
        items = [item for item in session.items if collection.will_run_in_a_world(item)]
        if items:
            from pytest_shardcheck.plugin.launching import Launching

            launching = Launching(config, config.stash[SETTINGS], _SYS_PATH)
            config.stash[LAUNCHING] = launching
            launching.warm_up(items)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        launching = item.config.stash.get(LAUNCHING, None)
        if launching is None or collection.SPEC not in item.stash:
            return (yield)
        from pytest_shardcheck.plugin.phases import WorldPhases

        # Here, so that no test is charged for it and no timeout of a test runs yet.
        launching.wait_until_ready()
        phases = item.stash[PHASES] = WorldPhases(launching, item)
        with phases.attached():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if reason := item.stash.get(cuda.REASON, None):
            pytest.fail(f"--require-cuda: {reason}", pytrace=False)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        phases = item.stash.get(PHASES, None)
        if phases is not None:
            from pytest_shardcheck.plugin import failures

            failures.apply_location(report, call)
            if call.when == "call":
                attach(report, item.stash[collection.SPEC], phases.readings())
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._summary.add(report)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        launching = config.stash.get(LAUNCHING, None)
        self._summary.write(
            terminalreporter,
            with_table=config.stash[SETTINGS].report,
            spawn_reasons=launching.spawn_reasons if launching is not None else {},
        )

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        launching = config.stash.get(LAUNCHING, None)
        if launching is not None:
            launching.close()
            del config.stash[LAUNCHING]


class _NeverXfailTheDead:
    """Outermost, after pytest's own xfail: a bare mark must not hide a dead rank."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        report = yield
        error = call.excinfo.value if call.excinfo is not None else None
        if isinstance(error, (DeadRankError, HarnessError)) and hasattr(report, "wasxfail"):
            from pytest_shardcheck.plugin.phases import names_the_error

            if not names_the_error(item, error):
                report.outcome = "failed"
                del report.wasxfail
        return report
