"""The pytest plugin: thin hooks that read settings, call one function, hand the result to pytest.

Loading it imports no torch and little of ours: a session without world tests pays nothing, and
starts no process. What a hook needs beyond that is imported in it.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_shardcheck.plugin import fixtures
from pytest_shardcheck.plugin.ending import Ending, has_all_reports
from pytest_shardcheck.plugin.fixtures import device_mesh, process_group, shardcheck, world
from pytest_shardcheck.plugin.settings import Settings, add_options, read_settings
from pytest_shardcheck.plugin.snapshots import register_keeper
from pytest_shardcheck.worlds.keys import IN_CHILD, NODEID, SPEC

if TYPE_CHECKING:
    from pytest_shardcheck.plugin.launching import Launching
    from pytest_shardcheck.plugin.outputs import Note
    from pytest_shardcheck.plugin.phases import WorldPhases
    from pytest_shardcheck.plugin.summary import Summary

__all__ = ["device_mesh", "process_group", "shardcheck", "world"]

SETTINGS: Final = pytest.StashKey[Settings]()
LAUNCHING: Final[pytest.StashKey[Launching]] = pytest.StashKey()
PHASES: Final[pytest.StashKey[WorldPhases]] = pytest.StashKey()

# As it is when pytest loads its plugins: before conftests and test modules add their folders.
_SYS_PATH: Final = tuple(sys.path)

_MARKERS: Final = {
    "world_size": "(*sizes, backend, device, mesh, timeout): run on that many ranks, a test a size",
    "memory": "(peak, live, growth, state, params, grads, ...): exact bytes on each rank",
    "max_memory": "(peak, live, growth, state, params, grads, ...): ceilings on them",
    "collectives": "(all_reduce, all_gather, ..., ignore): exact calls of each rank, and no others",
    "max_collectives": "(all_reduce, ..., count, bytes, wire_bytes, largest): ceilings on them",
    "saved_activations": "(count, bytes, storage_bytes, packed): exactly what autograd holds",
    "max_saved_activations": "(count, bytes, storage_bytes, packed): ceilings on them",
    "cuda": "(devices, memory, capability): GPU-only; skipped where CUDA is absent or too small",
}
_OURS: Final = frozenset(fixtures.NAMES)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare options and ini values."""
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that a framework may implement."""
    from pytest_shardcheck.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    """Read the settings and declare the markers."""
    settings = config.stash[SETTINGS] = read_settings(config)
    for name, description in _MARKERS.items():
        config.addinivalue_line("markers", f"{name}{description}")
    if has_all_reports(config) and settings.wants_files:
        from pytest_shardcheck.plugin.outputs import refuse_bad_paths

        refuse_bad_paths(settings)
    if IN_CHILD in config.stash:
        from pytest_shardcheck.adapters import deepspeed

        config.pluginmanager.register(deepspeed, "shardcheck-deepspeed")
        if _benchmark_is_active(config):
            from pytest_shardcheck.benchmark.fixture import RankBenchmark

            config.pluginmanager.register(RankBenchmark(), "shardcheck-benchmark")
    else:
        ending = Ending()
        config.pluginmanager.register(ending, "shardcheck-ending")
        session = _Session(ending, keeps_records=has_all_reports(config))
        config.pluginmanager.register(session, "shardcheck-session")
        config.pluginmanager.register(_NeverXfailTheDead(), "shardcheck-never-xfail-the-dead")
        register_keeper(config, config.stash[SETTINGS])


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make one test of each world."""
    if _concerns_us(metafunc.definition):
        from pytest_shardcheck.plugin.collection import parametrize

        parametrize(metafunc, metafunc.config.stash[SETTINGS])


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Attach worlds and expectations to what was collected; a wrong marker is its error."""
    report = yield
    if report.passed and any(_concerns_us(node) for node in report.result):
        from pytest_shardcheck.plugin.collection import prepare_report

        prepare_report(report, collector.config.stash[SETTINGS])
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Heed the markers that other hooks add: a folder's conftest often marks its tests so."""
    for item in items:
        # xdist's loadgroup changes ids: the processes that run ranks know an item by this one.
        item.stash[NODEID] = item.nodeid
    yield
    if _concerning_us(items):
        from pytest_shardcheck.plugin.collection import prepare_again

        for report in prepare_again(items, config.stash[SETTINGS]):
            config.hook.pytest_collectreport(report=report)


def _benchmark_is_active(config: pytest.Config) -> bool:
    """Tell whether pytest-benchmark is there: by its entry point, or by ``-p``."""
    names = ("benchmark", "pytest_benchmark.plugin")
    return any(config.pluginmanager.has_plugin(name) for name in names)


def _concerns_us(node: pytest.Item | pytest.Collector) -> bool:
    """Tell whether a test carries one of our markers or requests a fixture of one of our names."""
    if not isinstance(node, pytest.Item):
        return False
    if any(mark.name in _MARKERS for mark in node.iter_markers()):
        return True
    info = getattr(node, "_fixtureinfo", None)
    return info is not None and not _OURS.isdisjoint(info.names_closure)


def _concerning_us(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if _concerns_us(item)]


class _Session:
    """The hooks of the process that runs the session; ranks and their nursery have none of them."""

    def __init__(self, ending: Ending, *, keeps_records: bool) -> None:
        self._ending = ending
        self._keeps_records = keeps_records
        self._summary: Summary | None = None
        self._notes: list[Note] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        # Not when collection ends: --fixtures and others collect, and run nothing.
        config = session.config
        if config.option.collectonly or config.option.setupplan:
            return
        errors = session.testsfailed and not config.option.continue_on_collection_errors
        if concerned := _concerning_us(session.items):
            from pytest_shardcheck.plugin.collection import will_run_in_a_world
            from pytest_shardcheck.plugin.cuda import decide

            decide(concerned, require=config.stash[SETTINGS].require_cuda)
            # After an error pytest runs nothing (but a worker of xdist may run its tests).
            if not errors and any(map(will_run_in_a_world, concerned)):
                _launching(session)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if SPEC not in item.stash:
            return (yield)
        from pytest_shardcheck.plugin.collection import will_run_in_a_world
        from pytest_shardcheck.plugin.phases import WorldPhases

        if not will_run_in_a_world(item):
            return (yield)
        launching = _launching(item.session)
        # Here, so that no test is charged for it and no timeout of a test runs yet.
        launching.wait_until_ready()
        phases = item.stash[PHASES] = WorldPhases(launching, item)
        with launching.turn(item.stash[SPEC]), phases.attached():
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if "cuda" in item.keywords:
            from pytest_shardcheck.plugin.cuda import fail_where_required

            fail_where_required(item)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        phases = item.stash.get(PHASES, None)
        if phases is not None:
            phases.complete_report(report, call)
        elif SPEC in item.stash:  # skipped before any rank started: a recording has it all the same
            from pytest_shardcheck.plugin.records import attach

            attach(report, item.stash[SPEC], {}, ())
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self._keeps_records and hasattr(report, "shardcheck"):  # see records
            from pytest_shardcheck.plugin.summary import Summary

            self._summary = self._summary or Summary()
            self._summary.add(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        settings = session.config.stash[SETTINGS]
        nothing = self._summary is None and not settings.wants_files
        if nothing or not self._ending.has_run(session):
            return
        from pytest_shardcheck.plugin.outputs import write
        from pytest_shardcheck.plugin.summary import Summary

        kept = (self._summary or Summary()).kept(self._ending.why_incomplete(session))
        self._notes = write(settings, kept)
        if any(note.fails for note in self._notes) and session.exitstatus in (0, 5):
            # Whoever reads the file next would find an old one, or none.
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        if self._summary is not None:
            launching = config.stash.get(LAUNCHING, None)
            self._summary.write(
                terminalreporter,
                with_table=config.stash[SETTINGS].report,
                spawn_reasons=launching.spawn_reasons if launching is not None else {},
            )
        for note in self._notes:
            terminalreporter.write_line(f"shardcheck: {note.text}", **{note.colour: True})

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self, config: pytest.Config) -> None:
        launching = config.stash.get(LAUNCHING, None)
        if launching is not None:
            launching.close()
            del config.stash[LAUNCHING]


def _launching(session: pytest.Session) -> Launching:
    """Return what starts the session's worlds, made for all its world tests at the first call."""
    config = session.config
    if LAUNCHING not in config.stash:
        from pytest_shardcheck.plugin.collection import will_run_in_a_world
        from pytest_shardcheck.plugin.launching import Launching

        # Kept before anything starts, so that an interrupt finds it and ends what was started.
        try:
            launching = Launching(config, config.stash[SETTINGS], _SYS_PATH)
        except OSError as error:
            raise pytest.UsageError(f"worlds need a temporary directory: {error}") from error
        config.stash[LAUNCHING] = launching
        launching.warm_up([item for item in session.items if will_run_in_a_world(item)])
    return config.stash[LAUNCHING]


class _NeverXfailTheDead:
    """Outermost, after pytest's own xfail: a bare mark must not hide a dead rank."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        report = yield
        if hasattr(report, "wasxfail") and call.excinfo is not None and PHASES in item.stash:
            item.stash[PHASES].undo_xfail_of_the_dead(report, call.excinfo.value)
        return report
