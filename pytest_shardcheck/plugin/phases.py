"""Run a world test in the session: the ordinary protocol, each phase waiting for the world's."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from pytest_shardcheck.expectations import judge
from pytest_shardcheck.plugin import failures, relay
from pytest_shardcheck.plugin.launching import Launching
from pytest_shardcheck.plugin.records import add_properties, attach, attach_timelines
from pytest_shardcheck.plugin.snapshots import KEEPER, Held
from pytest_shardcheck.reports import explain
from pytest_shardcheck.vocabulary.call_log import CallLog
from pytest_shardcheck.vocabulary.errors import (
    DeadRankError,
    HarnessError,
    HungRankError,
    RankFailedError,
    ShardcheckError,
    UnmetExpectationError,
)
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.snapshots import RankSnapshot
from pytest_shardcheck.vocabulary.verdicts import Verdict
from pytest_shardcheck.worlds import agreement
from pytest_shardcheck.worlds.keys import EXPECTATIONS, SPEC
from pytest_shardcheck.worlds.outcome import Outcome, Phase
from pytest_shardcheck.worlds.world import World

_ERRORS: dict[str, type[ShardcheckError]] = {
    "failed": RankFailedError,
    "dead": DeadRankError,
    "hung": HungRankError,
}


class _LoneSkipError(RankFailedError):
    """Some ranks skipped: an xfail mark expects a failure, not a test that half ran."""


class WorldPhases:
    """Stands in for an item's ``setup``, ``runtest`` and ``teardown`` while its protocol runs.

    So reruns, ``-x``, ``--lf``, JUnit, durations and strict xfail mean what they always mean, for
    the whole world.
    """

    def __init__(self, launching: Launching, item: pytest.Item) -> None:
        """Prepare for ``item``; the world starts with the setup phase."""
        self._launching = launching
        self._item = item
        self._world: World | None = None
        self._in_trouble = False
        self._verdicts: list[Verdict] = []
        self._held: Held | None = None

    @contextmanager
    def attached(self) -> Generator[None]:
        """Replace the item's methods; end the world whatever happens."""
        names = ("setup", "runtest", "teardown")
        for name in names:
            setattr(self._item, name, getattr(self, name))
        plugins = self._item.config.pluginmanager
        # --pdb would open in our own frame: the failure is in another process.
        post_mortem = plugins.unregister(name="pdbinvoke")
        try:
            yield
        finally:
            if post_mortem is not None:
                plugins.register(post_mortem, "pdbinvoke")
            for name in names:
                delattr(self._item, name)
            self._discard()

    def setup(self) -> None:
        """Start the world and wait until every rank is set up."""
        self._discard()
        self._in_trouble = False
        self._verdicts = []
        self._held = None
        with self._world_ends_on_error("setup"):
            self._world = self._launching.launch(self._item, self._item.stash[SPEC])
            self._world.wait_for_start()
            outcome = self._world.wait_for("setup")
            # A rank that ran ahead failed in its call: that is where the test fails.
            if outcome.lead is None or outcome.lead.phase in ("start", "setup"):
                self._conclude("setup", outcome)

    def runtest(self) -> None:
        """Wait until every rank has run the test, then judge what they measured."""
        assert self._world is not None
        with self._world_ends_on_error("call"):
            self._conclude("call", self._world.wait_for("call"))
            self._judge(self._world)
            self._hold_snapshots(self._world)

    def teardown(self) -> None:
        """Wait until every rank is torn down and gone."""
        world = self._world
        if world is None:
            return
        with self._world_ends_on_error("teardown"):
            outcome = world.wait_for("teardown")
            if self._in_trouble:
                # What was reported already is no second failure; a teardown that failed is.
                outcome = world.outcome_of_reports("teardown")
                if outcome.kind == "passed":
                    world.finish()  # a rank saves what it has covered after its last report
                    self._discard()
                    return
            self._conclude("teardown", outcome)
            self._conclude("exit", world.finish())
            self._discard()
            self._settle_snapshots()

    def complete_report(self, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
        """Show a rank's failure instead of ours, and attach what the ranks measured."""
        failures.apply_location(report, call)
        ran = call.when == "call"
        readings = self.readings() if ran else {}
        held = self._held if call.when == "teardown" and report.passed else None
        attach(
            report,
            self._item.stash[SPEC],
            readings,
            self._verdicts if ran else (),
            held.records if held is not None else (),
        )
        if ran and self._world is not None:
            attach_timelines(report, self._world.timelines())
        if ran:
            self._deliver_benchmark(readings)
        if ran and self._launching.writes_properties:
            add_properties(self._item, readings)

    def _deliver_benchmark(self, readings: dict[int, list[Reading]]) -> None:
        """Hand the session what ranks timed; like pytest-benchmark, also where the test failed."""
        states = self._world.states if self._world is not None else []
        timed = {s.rank: s.extra["benchmark"] for s in states if "benchmark" in s.extra}
        if timed:
            from pytest_shardcheck.benchmark import deliver

            flat = [reading for its in readings.values() for reading in its]
            deliver(self._item, self._item.stash[SPEC], timed, flat)

    def undo_xfail_of_the_dead(self, report: pytest.TestReport, error: BaseException) -> None:
        """Make a failure of a dead rank that a mark excuses without naming the error."""
        never_expected = (DeadRankError, HarnessError, _LoneSkipError)
        if isinstance(error, never_expected) and not _names(self._item, error):
            report.outcome = "failed"
            del report.wasxfail

    def readings(self) -> dict[int, list[Reading]]:
        """Return what the ranks have measured so far."""
        states = self._world.states if self._world is not None else []
        return {s.rank: [Reading.from_json(data) for data in s.readings] for s in states}

    @contextmanager
    def _world_ends_on_error(self, when: Phase) -> Generator[None]:
        """Kill the world at once when the session is interrupted; otherwise its teardown comes.

        In the end the terminal is pytest's again.
        """
        __tracebackhide__ = True
        try:
            yield
        except (KeyboardInterrupt, pytest.exit.Exception, SystemExit):
            self._discard()
            raise
        except HarnessError as error:
            self._in_trouble = True
            failures.located(error, failures.plain(self._item, str(error)))
            # Nothing that this world still says can be believed, nor is it waited for again.
            self._discard()
            raise
        except BaseException as error:
            self._in_trouble = True
            if self._world is not None and not failures.is_located(error):
                self._interrupted(when, self._world, error)
            raise
        finally:
            self._launching.erase_life_sign()

    def _interrupted(self, when: Phase, world: World, error: BaseException) -> None:
        """End the world on somebody else's error: pytest-timeout's is not to wait for ours too."""
        if not isinstance(error, pytest.fail.Exception):
            world.stop()
            return
        outcome = world.interrupt(when)
        relay.relay(self._item, world, when)
        if outcome.lead is not None:
            report = failures.representation(self._item, outcome, world, first=str(error))
            failures.located(error, report)

    def _discard(self) -> None:
        world, self._world = self._world, None
        if world is not None:
            self._launching.discard(world)
            relay.relay_warnings(self._item, world)

    def _conclude(self, when: Phase, outcome: Outcome) -> None:
        """Pass on what the ranks printed and warned of, then turn the outcome into pytest's."""
        assert self._world is not None
        relay.relay(self._item, self._world, when)
        _obey_stop(self._world)
        if outcome.kind != "passed":
            self._raise(when, outcome)

    def _raise(self, when: Phase, outcome: Outcome) -> NoReturn:
        assert self._world is not None
        assert outcome.lead is not None
        report = outcome.lead.report or {}
        if outcome.kind == "skipped":
            path, line, reason = report["longrepr"]
            raise failures.located(
                pytest.skip.Exception(str(reason).removeprefix("Skipped: ")), (path, line, reason)
            )
        if outcome.kind == "xfailed":
            raise failures.located(
                pytest.xfail.Exception(str(report.get("wasxfail") or "")),
                failures.representation(self._item, outcome, self._world),
            )
        kind = _LoneSkipError if outcome.lead.kind == "skipped" else _ERRORS[outcome.kind]
        error = kind(failures.summary(outcome))
        raise failures.located(error, failures.representation(self._item, outcome, self._world))

    def _judge(self, world: World) -> None:
        """Fail where the ranks disagreed in a collective, or a marker's expectation is unmet."""
        texts = list(filter(None, (_disagreement(world), self._unmet(world))))
        if not texts:
            return
        error = UnmetExpectationError(texts[0].splitlines()[0])
        raise failures.located(error, failures.plain(self._item, "\n\n".join(texts)))

    def _unmet(self, world: World) -> str:
        expectations = self._item.stash[EXPECTATIONS]
        if not expectations:
            return ""
        spec = self._item.stash[SPEC]
        abandoned = {state.rank: state.abandoned for state in world.states}
        self._verdicts = judge(expectations, spec, self.readings(), abandoned)
        met = all(verdict.met for verdict in self._verdicts)
        return "" if met else explain(self._verdicts, spec)

    def _hold_snapshots(self, world: World) -> None:
        """Fail where a snapshot is not as recorded, or is not recorded."""
        keeper = self._item.config.stash.get(KEEPER, None)
        if keeper is None:
            return
        taken = [RankSnapshot.from_json(data) for s in world.states for data in s.snapshots]
        held = keeper.hold(self._item, taken, self.readings())
        if not held.unmet:
            self._held = held
            return
        if held.records:
            # Counted as failed at once: the world is not waited for as long as one that passed.
            self._held = keeper.settle(self._item, held)
        error = UnmetExpectationError(held.unmet.splitlines()[0])
        raise failures.located(error, failures.plain(self._item, held.unmet))

    def _settle_snapshots(self) -> None:
        """Count and write the snapshots of a world that has ended well."""
        keeper = self._item.config.stash.get(KEEPER, None)
        if keeper is not None and self._held is not None:
            self._held = keeper.settle(self._item, self._held)


def _disagreement(world: World) -> str:
    """Return in which calls the ranks of a test that passed disagreed; nothing if in none."""
    logs = {s.rank: CallLog.from_json(s.log) for s in world.states if s.log is not None}
    if len(logs) < len(world.states):
        return ""
    calls = {rank: agreement.calls_of_log(log) for rank, log in logs.items()}
    found = agreement.differences(calls)
    return "\n".join([*found, agreement.ADVICE]) if found else ""


def _obey_stop(world: World) -> None:
    """End the session as a rank asked for: ``pytest.exit``, or a Ctrl-C that reached it."""
    for state in world.states:
        if state.stop is None:
            continue
        if state.stop["why"] == "interrupt":
            raise KeyboardInterrupt
        if state.stop["why"] == "exit":
            pytest.exit(f"{state.stop['text']} (rank {state.rank})", state.stop["returncode"])
        raise HarnessError(
            f"pytest itself failed in rank {state.rank}, which is a defect of a plugin or of "
            f"pytest-shardcheck:\n{state.stop['text']}"
        )


def _names(item: pytest.Item, error: BaseException) -> bool:
    """Tell whether an xfail mark names one of our errors: a bare one never hides a dead rank."""
    for mark in item.iter_markers("xfail"):
        raises = mark.kwargs.get("raises")
        for kind in raises if isinstance(raises, tuple) else (raises,):
            if isinstance(kind, type) and issubclass(kind, ShardcheckError):
                return isinstance(error, kind)
    return False
