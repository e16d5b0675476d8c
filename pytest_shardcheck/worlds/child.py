"""A process that holds a copy of the session's pytest: the nursery, or one spawned rank.

Runs in the child and imports nothing of the session's side. It never runs ``pytest_sessionfinish``
or ``pytest_unconfigure`` (syrupy would delete snapshots, cov would erase its data): such a process
ends by ``os._exit``.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import sys
import threading
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import pytest

from pytest_shardcheck import _compat
from pytest_shardcheck.vocabulary.errors import HarnessError
from pytest_shardcheck.worlds import lifeline, rendezvous
from pytest_shardcheck.worlds.channel import Channel
from pytest_shardcheck.worlds.keys import IN_CHILD
from pytest_shardcheck.worlds.orders import Order, Startup
from pytest_shardcheck.worlds.rank import RankFixtures, run_rank

# Options of the session that a child must not follow: what selects tests (the session has done it),
# what writes a file, a cache or a report, and what starts more processes or a debugger.
_RESET: Final[Mapping[str, Any]] = {
    "benchmark_compare": False,
    "cacheclear": False,
    "capture": "no",
    "collectonly": False,
    "cov_source": [],
    "deselect": None,
    "dist": "no",
    "durations": None,
    "failedfirst": False,
    "htmlpath": None,
    "keyword": "",
    "lf": False,
    "log_file": os.devnull,
    "looponfail": False,
    "markexpr": "",
    "maxfail": 0,
    "maxprocesses": None,
    "newfirst": False,
    "numprocesses": None,
    "pastebin": None,
    "pyargs": False,
    "report_log": None,
    "setupshow": False,
    "stepwise": False,
    "stepwise_reset": False,
    "stepwise_skip": False,
    "trace": False,
    "tx": [],
    "usepdb": False,
    "xmlpath": None,
}


@dataclass
class Collected:
    """What a child found: items by node id, what failed to collect, what makes forking unsafe."""

    session: pytest.Session
    items: dict[str, pytest.Item] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    unsafe: dict[str, str] = field(default_factory=dict)


def main(
    role: str,
    config: pytest.Config,
    startup: Mapping[str, Any],
    channel_fd: int,
    lifeline_fd: int,
) -> NoReturn:
    """Collect the session's world tests, then serve as ``role`` (nursery, rank) until the end."""
    lifeline.tie_own_group(lifeline_fd)
    for fd in (channel_fd, lifeline_fd):
        os.set_inheritable(fd, False)
    channel = Channel.from_fd(channel_fd)
    if role == "nursery":
        from pytest_shardcheck.worlds.nursery import serve

        collected = collect(config, Startup.from_json(startup))
        serve(collected, channel, lifeline_fd)
    _become_spawned_rank(collect(config, Startup.from_json(startup)), channel)


def _become_spawned_rank(collected: Collected, channel: Channel) -> NoReturn:
    """Run the one item that the session names next."""
    received = channel.receive()
    if received is None:
        os._exit(0)
    message, (output_fd, *listener_fds) = received
    order = Order.from_json(message["order"])
    try:
        item = find(collected, order)
    except HarnessError as error:
        channel.send({"kind": "refused", "why": str(error)})
        os._exit(1)
    # Rank 0 answers on MASTER_PORT: there is no process to fork a keeper from.
    _store = [
        rendezvous.serve_store(socket.socket(fileno=fd), order.spec.size) for fd in listener_fds
    ]
    run_rank(item, order, message["rank"], channel, output_fd)


def collect(config: pytest.Config, startup: Startup) -> Collected:
    """Configure pytest as the session has it and collect the files that hold its world tests."""
    config.stash[IN_CHILD] = True
    for name, value in {**startup.option, **_RESET}.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.args = list(startup.files)
    if startup.worker_input is not None:
        # What a fixture such as xdist's worker_id reads.
        config.workerinput = dict(startup.worker_input)  # type: ignore[attr-defined]
    _compat.configure(config)
    # Only now: sugar, instafail and others look for it when they are configured.
    config.pluginmanager.unregister(name="terminalreporter")
    session = _compat.start_session(config)
    collected = Collected(session)
    config.pluginmanager.register(_Collector(collected), "shardcheck-collector")
    config.pluginmanager.register(RankFixtures(), "shardcheck-rank-fixtures")
    config.hook.pytest_collection(session=session)
    return collected


class _Collector:
    """Keep every item, also those that a hook drops: the session has made its own choice."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected
        config = collected.session.config
        self._plugins = {
            plugin.__name__.partition(".")[0]
            for plugin, _ in config.pluginmanager.list_plugin_distinfo()
            if hasattr(plugin, "__name__")
        }
        self._threads: set[str] = set()
        self._cuda = False
        self._note_unsafe("conftest.py")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        for item in items:
            self._collected.items[item.nodeid] = item
        yield

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if isinstance(collector, pytest.File):
            self._note_unsafe(str(collector.path))
        if report.failed:
            self._collected.errors[collector.nodeid] = report.longreprtext
        return report

    def _note_unsafe(self, path: str) -> None:
        threads = _threads_of_others(self._plugins)
        if threads - self._threads:
            names = ", ".join(sorted(threads - self._threads))
            self._collected.unsafe[path] = f"importing it starts a thread ({names})"
        # It stays initialised: only the file that did it is to blame.
        cuda = sys.modules["torch"].cuda.is_initialized()
        if cuda and not self._cuda:
            self._collected.unsafe.setdefault(path, "importing it initialises CUDA")
        self._threads, self._cuda = threads, cuda


def _threads_of_others(plugins: set[str]) -> set[str]:
    """Return the names of Python threads that no installed plugin started.

    A plugin's thread (rerunfailures' server) holds no lock that a rank needs, since the rank leaves
    that plugin's protocol out; a test module's may hold any.
    """
    names = set()
    for thread in threading.enumerate():
        # Thread._target is private; a thread has no public name of what it runs.
        owner = getattr(thread, "_target", None) or type(thread)
        if thread is not threading.main_thread() and owner.__module__.split(".")[0] not in plugins:
            names.add(thread.name)
    return names


def find(collected: Collected, order: Order) -> pytest.Item:
    """Return the item of an order, the very same test as in the session.

    Raises:
        HarnessError: It is not there, or its parameters are others.
    """
    item = collected.items.get(order.nodeid)
    if item is None:
        errors = "".join(f"\n{name}: {text}" for name, text in collected.errors.items())
        raise HarnessError(
            f"{order.nodeid} was collected by the session, but not by the process that runs ranks."
            f"{errors}\nTest ids must be the same in every process: none may come from a set's "
            "order, a random number, the time or an object's address."
        )
    for name, theirs in order.fingerprint.items():
        ours = fingerprint(item).get(name)
        if ours != theirs:
            raise HarnessError(
                f"{order.nodeid}: parameter {name!r} is {theirs} in the session, but {ours} in the "
                "process that runs ranks. Parameters must be the same in every process: none may "
                "come from a set's order, a random number or the time."
            )
    return item


def fingerprint(item: pytest.Item) -> dict[str, str]:
    """Return what tells an item's parameters apart; addresses differ in every process."""
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    return {name: _without_addresses(value) for name, value in params.items()}


def _without_addresses(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # a user's __repr__ may do anything
        text = f"<repr() raised {type(error).__name__}>"
    return re.sub(r"0x[0-9a-fA-F]+", "0x...", text)[:1000]


def settle_before_fork(config: pytest.Config) -> None:
    """Leave nothing for the children to collect, copy or report again."""
    gc.collect()
    gc.freeze()
    _compat.empty_exception_queues(config)
