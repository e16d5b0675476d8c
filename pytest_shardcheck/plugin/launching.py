"""The session's launchers: one nursery beside the session, or fresh interpreters."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from pytest_shardcheck import _compat
from pytest_shardcheck.plugin import life
from pytest_shardcheck.plugin.settings import Settings
from pytest_shardcheck.vocabulary.errors import HarnessError
from pytest_shardcheck.vocabulary.specs import WorldSpec
from pytest_shardcheck.worlds import coverage, lifeline, rendezvous
from pytest_shardcheck.worlds.child import fingerprint
from pytest_shardcheck.worlds.forked import Nursery
from pytest_shardcheck.worlds.keys import NODEID
from pytest_shardcheck.worlds.lifeline import Lifeline
from pytest_shardcheck.worlds.orders import Order, Startup
from pytest_shardcheck.worlds.processes import Launcher
from pytest_shardcheck.worlds.slots import Slots
from pytest_shardcheck.worlds.spawned import Spawner
from pytest_shardcheck.worlds.world import Audience, World

_RANKS_PER_CORE: Final = 4
# torch's import, and the collection of the world tests, on a busy machine.
_NURSERY_TIMEOUT_S: Final = 300.0


class Launching:
    """Everything that a session needs to start worlds; made when a world test was collected."""

    def __init__(
        self, config: pytest.Config, settings: Settings, sys_path: tuple[str, ...]
    ) -> None:
        """Start nothing yet, so that whoever is interrupted while we do has something to close.

        ``sys_path`` is as it was before conftests and test modules added their folders.
        """
        self._config = config
        self._settings = settings
        self._sys_path = sys_path
        self._lifeline = Lifeline()
        self._directory = Path(tempfile.mkdtemp(prefix="shardcheck-"))
        self._sweeper = lifeline.sweep_up(self._lifeline.read_fd, self._directory)
        self._numbers = itertools.count(1)
        self._files: tuple[str, ...] = ()
        self._spawners: dict[str, Spawner] = {}
        self._nursery: Nursery | None = None
        self._nursery_error: HarnessError | None = None
        self._controller_has_left = _compat.controller_has_left(config)
        self._life = life.of_session(config)
        self._slots = self._shared_slots()
        self.spawn_reasons: dict[str, str] = {}

    @property
    def writes_properties(self) -> bool:
        """Tell whether figures belong to a test's properties: other reporters print those."""
        junit = self._config.getoption("xmlpath", None) is not None
        return junit and self._settings.junit_properties

    def warm_up(self, items: Sequence[pytest.Item]) -> None:
        """Start the nursery for these world tests; it gets ready while the session goes on."""
        self._files = tuple(dict.fromkeys(str(item.path) for item in items))
        if self._settings.start == "fork":
            self._start_nursery(self._files)

    @contextlib.contextmanager
    def turn(self, spec: WorldSpec) -> Generator[None]:
        """Wait until the ranks of a world may run beside those of other workers."""
        with self._slots.taken(spec.size) if self._slots else contextlib.nullcontext():
            yield

    def _shared_slots(self) -> Slots | None:
        """Return what bounds the ranks over all workers; a session alone has one world a time."""
        if not hasattr(self._config, "workerinput"):
            return None
        # Every worker's base directory is made in the one of the session that started it.
        shared = _compat.base_temporary_directory(self._config).parent
        count = self._settings.max_ranks or _RANKS_PER_CORE * (os.cpu_count() or 1)
        return Slots(shared / "shardcheck-slots", count)

    def wait_until_ready(self) -> None:
        """Wait for the nursery; what goes wrong is reported by the tests that need it."""
        while self._nursery is not None and self._nursery_error is None:
            try:
                unsafe = self._nursery.wait_until_ready(_NURSERY_TIMEOUT_S)
            except HarnessError as error:
                self._nursery_error = error
                return
            if not unsafe:
                return
            # What a file did on import can't be undone: start again without it.
            self.spawn_reasons.update(unsafe)
            self._nursery.close()
            self._nursery = None
            safe = tuple(file for file in self._files if file not in self.spawn_reasons)
            everywhere = any(file not in self._files for file in unsafe)
            if safe and not everywhere:
                self._start_nursery(safe)

    def launch(self, item: pytest.Item, spec: WorldSpec) -> World:
        """Start the world of a test.

        Raises:
            HarnessError: No world can be started.
        """
        if self._nursery_error is not None:
            raise self._nursery_error
        try:
            return self._launch(item, spec)
        except OSError as error:
            files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise HarnessError(
                f"a world of {spec.size} ranks could not be started: {error}. It needs about "
                f"{4 * spec.size + 64} open files (ulimit -n is {files}), {spec.size} processes, "
                f"and room in {self._directory.parent}."
            ) from error

    def _launch(self, item: pytest.Item, spec: WorldSpec) -> World:
        launcher = self._launcher(str(item.path))
        listener = rendezvous.listen()
        log_handlers = _compat.live_log_handlers(self._config)
        order = Order(
            nodeid=item.stash.get(NODEID, item.nodeid),
            fingerprint=fingerprint(item),
            spec=spec,
            directory=str(self._new_directory()),
            tmp_path=str(_compat.new_tmp_path(self._config, _file_name(item.name))),
            capture=self._config.option.capture,
            threads=self._settings.threads,
            port=listener.getsockname()[1],
            coverage=coverage.of_session(),
            log_level=min(handler.level for handler in log_handlers) if log_handlers else None,
        )
        with listener:
            processes = launcher.launch(order, listener)
        terminal = self._config.pluginmanager.getplugin("terminalreporter")
        audience = Audience(
            show=terminal.write_line if order.capture == "no" and terminal is not None else None,
            log_handlers=log_handlers,
            has_left=self._controller_has_left,
            look=self._life.look if self._life is not None else None,
        )
        return World(
            launcher, processes, order, spec.timeout_s or self._settings.timeout_s, audience
        )

    def erase_life_sign(self) -> None:
        """Leave the terminal as pytest knows it: it is about to write."""
        if self._life is not None:
            self._life.erase()

    def discard(self, world: World) -> None:
        """End a world and remove its folder."""
        try:
            world.close()
        finally:
            shutil.rmtree(world.directory, ignore_errors=True)

    def close(self) -> None:
        """End every process of ours and remove our files."""
        if self._nursery is not None:
            self._nursery.close()
        if self._slots is not None:
            self._slots.close()
        self._lifeline.close()
        self._sweeper.wait()

    def _start_nursery(self, files: tuple[str, ...]) -> None:
        self._nursery = Nursery(
            self._startup(files), self._lifeline, self._log, self._settings.threads
        )

    def _launcher(self, path: str) -> Launcher:
        if self._nursery is not None and path not in self.spawn_reasons:
            return self._nursery
        if path not in self._spawners:
            self._spawners[path] = Spawner(
                self._startup((path,)), self._lifeline, self._log, self._settings.threads
            )
        return self._spawners[path]

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _new_directory(self) -> Path:
        directory = self._directory / f"world-{next(self._numbers)}"
        directory.mkdir()
        return directory

    def _startup(self, files: tuple[str, ...]) -> Startup:
        config = self._config
        args = [*map(str, config.invocation_params.args), "--capture=no"]
        if config.pluginmanager.hasplugin("pytest_cov"):
            # Coverage of the session alone would erase its data file when it starts again.
            args.append("--no-cov")
        return Startup(
            sys_path=self._sys_path,
            argv=tuple(sys.argv),
            args=tuple(args),
            plugins=tuple(p for p in config.invocation_params.plugins or () if isinstance(p, str)),
            directory=str(config.invocation_params.dir),
            option=_plain(vars(config.option)),
            worker_input=_plain(getattr(config, "workerinput", {})) or None,
            files=files,
        )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that JSON leaves as they are; for the others a child parses the args."""
    return {name: value for name, value in values.items() if _is_plain(value)}


def _is_plain(value: object) -> bool:
    # The very types: JSON makes a list of a tuple and a plain string of an enum that is one.
    if type(value) is list:
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(_is_plain, value.values()))
    return value is None or type(value) in (str, int, float, bool)


def _file_name(name: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in name)[:30]
