"""One world as the session sees it: wait for a phase of all ranks, bound it, decide it.

The session, not a collective, decides the outcome: it believes no rank that has not sent its
completion record and ended cleanly.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pytest_shardcheck.vocabulary.errors import HarnessError
from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.worlds import clock, interpreter, live_log, packed_timelines, watchdog
from pytest_shardcheck.worlds.channel import Message, wait_readable
from pytest_shardcheck.worlds.grace import LONE_SKIP_QUIET_S, QUIET_S, Grace
from pytest_shardcheck.worlds.orders import Order, timeline_path
from pytest_shardcheck.worlds.outcome import Outcome, Phase, RankResult, decide
from pytest_shardcheck.worlds.processes import Launcher, Processes, kill
from pytest_shardcheck.worlds.rank_state import RankState

_EXIT_S: Final = 20.0
_START_S: Final = 300.0
_TICK_S: Final = 0.05
_MOST_OUTPUT: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Audience:
    """Who looks on while a world runs.

    ``show`` gets each line that ranks print, as it comes; ``log_handlers`` each record that they
    log; ``has_left`` tells that nobody waits for this session any more; ``look`` is called about
    once a second.
    """

    show: Callable[[str], object] | None = None
    log_handlers: Sequence[logging.Handler] = ()
    has_left: Callable[[], bool] = lambda: False
    look: Callable[[World], object] | None = None


class World:
    """The ranks that run one test, from their start to their burial."""

    def __init__(
        self,
        launcher: Launcher,
        processes: Processes,
        order: Order,
        timeout_s: float,
        audience: Audience,
    ) -> None:
        """Watch the started ``processes`` for the ``audience``."""
        self.order = order
        self.states = [RankState(rank) for rank in order.spec.running]
        self.collectives: list[str] = []
        self.notes: list[str] = []
        self.started = clock.now()
        self._launcher = launcher
        self._processes = processes
        self._timeout_s = timeout_s
        self._audience = audience
        self._gathers: dict[int, dict[int, Any]] = {}
        # The pipes that some process of the world still holds open.
        self._open_outputs = dict(enumerate(processes.outputs))
        self._imported: dict[str, None] = {}
        self._closed = False

    @property
    def directory(self) -> Path:
        """Return the folder of this world that is ours."""
        return Path(self.order.directory)

    def wait_for_start(self) -> None:
        """Wait until every rank has begun: a spawned one imports torch and collects first.

        What a test may take is counted from here.
        """
        deadline = clock.now() + max(_START_S, self._timeout_s)
        while any(not s.started and s.exit is None for s in self.states):
            if self._processes.refused:
                return
            if clock.now() >= deadline:
                self._time_out("start", [s for s in self.states if not s.started], _START_S)
                return
            self._pump(_TICK_S)

    def wait_for(self, when: Literal["setup", "call", "teardown"]) -> Outcome:
        """Wait until every rank is through with a phase; stop the world when one is in trouble."""
        self._wait(when, self._timeout_s)
        return self.outcome(when)

    def timelines(self) -> dict[int, str]:
        """Return the packed timelines of the ranks that have written one, once their call ended."""
        paths = {s.rank: timeline_path(self.directory, s.rank) for s in self.states}
        packed = {rank: packed_timelines.read(path) for rank, path in paths.items()}
        return {rank: text for rank, text in packed.items() if text is not None}

    def finish(self) -> Outcome:
        """Let the ranks leave, and wait until they are gone."""
        self._wait_until_complete()
        for state, channel in zip(self.states, self._processes.channels, strict=True):
            if state.complete and state.exit is None:
                with contextlib.suppress(OSError):
                    channel.send({"kind": "leave"})
        self._wait("exit", min(self._timeout_s, _EXIT_S))
        return self.outcome("exit")

    def outcome(self, when: Phase) -> Outcome:
        """Return the outcome of a phase as it is known now."""
        if self._processes.refused:
            raise HarnessError(self._processes.refused)
        outcome = self._decide(state.result(when) for state in self.states)
        if outcome.kind == "passed":
            return outcome
        return self._decide(state.result_since(when) for state in self.states)

    def outcome_of_reports(self, when: Phase) -> Outcome:
        """Return the outcome of the ranks that reported a phase; the others had their trouble."""
        return self._decide(state.reported(when) for state in self.states if when in state.reports)

    def _decide(self, results: Iterable[RankResult]) -> Outcome:
        return decide(list(results), size=self.order.spec.size)

    def close(self) -> None:
        """Kill what is left and free everything; harmless when repeated."""
        if self._closed:
            return
        self._closed = True
        try:
            kill(self._processes)
            self._launcher.bury(self._processes, _EXIT_S)
            if self._imported:
                self._launcher.learn(list(self._imported))
        finally:
            self._drain_outputs()
            self._write_unfinished_lines()
            for channel in self._processes.channels:
                channel.close()
            for fd in self._processes.outputs:
                os.close(fd)
            for state in self.states:
                for fd in state.capture_fds:
                    os.close(fd)

    def take_lost_output(self, state: RankState) -> list[tuple[str, str]]:
        """Return, once, what a dead rank had printed and not reported."""
        texts = []
        for name, fd in zip(("stdout", "stderr"), state.capture_fds, strict=False):
            texts.append((name, os.pread(fd, _MOST_OUTPUT, 0).decode(errors="replace")))
            os.close(fd)
        state.capture_fds.clear()
        texts.append(("output", state.output.decode(errors="replace")))
        state.output.clear()
        return [(name, text) for name, text in texts if text.strip()]

    # Waiting

    def _wait(self, when: Phase, timeout_s: float) -> None:
        deadline = clock.now() + timeout_s
        grace = Grace(dict(zip(self.order.spec.running, self._processes.pids, strict=False)))
        while True:
            outstanding = [state for state in self.states if not state.settled(when)]
            if not outstanding or self._processes.refused:
                break
            patience_s = self._patience_s(outstanding)
            # Also a rank that has failed goes on: it tears down, and saves what it has measured.
            busy = [s.rank for s in self.states if not s.complete and s.exit is None and not s.gone]
            if patience_s is not None and grace.is_over(busy, patience_s):
                self.stop()
                break
            if clock.now() >= deadline:
                self._time_out(when, outstanding, timeout_s)
                break
            pause = deadline - clock.now() if patience_s is None else _TICK_S
            self._pump(min(pause, 1.0))
        self._wait_for_ends(lambda state: state.lost)
        self._note_the_dead()
        self._note_disagreement()

    def _patience_s(self, outstanding: list[RankState]) -> float | None:
        """Return how long the others may be quiet before they are stopped; None: no reason to."""
        kinds = {state.trouble for state in self.states if state not in outstanding}
        if kinds & {"failed", "dead", "xfailed"} or any(state.stop for state in self.states):
            return QUIET_S
        if all(state.gathering for state in outstanding):
            self._note_who_is_missing()
            return QUIET_S
        return LONE_SKIP_QUIET_S if "skipped" in kinds else None

    def _note_who_is_missing(self) -> None:
        """Say why ranks that all wait for each other, outside of torch, wait in vain."""
        missing = [state.rank for state in self.states if not state.gathering]
        deeds = self._deeds()
        if len(deeds) > 1:
            where = "; ".join(f"{fold_ranks(ranks)} {deed}" for deed, ranks in deeds.items())
            note = f"the ranks wait for each other in different places: {where}"
        else:
            note = f"{fold_ranks(missing)} never {next(iter(deeds))} that others wait in"
        if note not in self.notes:
            self.notes.append(note)

    def _deeds(self) -> dict[str, list[int]]:
        """Return what ranks did that wait for each other outside of torch, and which did it."""
        deeds: dict[str, list[int]] = {}
        for state in self.states:
            if state.gathering:
                deeds.setdefault(state.deed, []).append(state.rank)
        return deeds

    def _wait_until_complete(self) -> None:
        deadline = clock.now() + min(self._timeout_s, _EXIT_S)
        while waiting := [s for s in self.states if not s.complete and s.exit is None]:
            if clock.now() >= deadline:
                self._time_out("exit", waiting, min(self._timeout_s, _EXIT_S))
                return
            self._pump(_TICK_S)

    def _pump(self, timeout_s: float) -> None:
        """Take in whatever has arrived, waiting at most ``timeout_s`` for the first of it.

        Raises:
            KeyboardInterrupt: Whoever wanted to know has left.
        """
        if self._audience.has_left():
            raise KeyboardInterrupt
        if self._audience.look is not None:
            self._audience.look(self)
        channels = self._processes.channels
        waiting: list[Any] = [channel for channel in channels if not channel.closed]
        quiet_ends = len(waiting) < len(channels)
        waiting += self._open_outputs.values()
        waiting += self._launcher.wait_fds(self._processes)
        # A closed channel has no more news; its rank's end may come without waking anyone.
        wait_readable(waiting, min(timeout_s, 0.01) if quiet_ends else timeout_s)
        for state, channel in zip(self.states, channels, strict=True):
            if not channel.closed:
                state.seen_ns = clock.now_ns()
            for message in channel.receive_ready():
                self._take(state, message)
            state.gone = channel.closed
            state.capture_fds += channel.take_fds()
        self._drain_outputs()
        self._launcher.update(self._processes)
        self._take_exits()

    def _take_exits(self) -> None:
        for place, status in self._processes.exits.items():
            state = self.states[place]
            if state.exit is None:
                # Its last messages may have arrived after they were last looked for.
                for message in self._processes.channels[place].receive_ready():
                    self._take(state, message)
                state.exit = status
                state.exit_ns = clock.now_ns()

    def _take(self, state: RankState, message: Message) -> None:
        kind = message["kind"]
        if kind == "report":
            state.reports[message["when"]] = message
            state.readings += message.get("readings", [])
            state.abandoned += message.get("abandoned", [])
            state.log = message.get("log", state.log)
            state.snapshots += message.get("snapshots", [])
        elif kind == "complete":
            state.complete = True
            state.stop = message["stop"]
            self._imported.update(dict.fromkeys(message["imported"]))
        elif kind == "gather":
            self._gather(state, message)
        elif kind == "refused":
            self._processes.refused = message["why"]
        elif kind in ("subtest", "warning"):
            getattr(state, f"{kind}s").append(message)
        elif kind == "log":
            live_log.write(message, state.rank, self._audience.log_handlers)
        elif kind == "hello":
            state.started = True
        else:
            raise HarnessError(f"rank {state.rank} sent a message of unknown kind {kind!r}")

    def _gather(self, state: RankState, message: Message) -> None:
        number = message["number"]
        values = self._gathers.setdefault(number, {})
        values[state.rank] = message["value"]
        state.gathering, state.deed = number, message["deed"]
        if len(values) < len(self.states) or len(self._deeds()) > 1:
            return
        ordered = [values[state.rank] for state in self.states]
        for other, channel in zip(self.states, self._processes.channels, strict=True):
            other.gathering = 0
            with contextlib.suppress(OSError):  # it has died, which is found out elsewhere
                channel.send({"kind": "gathered", "values": ordered})
        del self._gathers[number]

    # Ending

    def stop(self) -> None:
        """Kill the world; the ranks that still ran are marked as stopped by us."""
        try:
            self._pump(0)  # who has died by itself was not stopped
        finally:
            for state in self.states:
                alive = state.exit is None and not state.lost
                state.stopped = alive and state.hung_in is None
            kill(self._processes)
        self._wait_for_ends(lambda _: True)

    def _wait_for_ends(self, of: Callable[[RankState], bool]) -> None:
        """Wait until it is known how these ranks ended, who end or are dead."""
        deadline = clock.now() + _EXIT_S
        while any(state.exit is None and of(state) for state in self.states):
            if clock.now() >= deadline or self._processes.refused:
                return
            self._pump(_TICK_S)

    def interrupt(self, when: Phase) -> Outcome:
        """Stop the world in a phase as if its time were over: somebody else says that it is."""
        if outstanding := [state for state in self.states if not state.settled(when)]:
            self._give_up(when, outstanding, "was still running")
        return self.outcome(when)

    def _time_out(self, when: Phase, outstanding: list[RankState], timeout_s: float) -> None:
        self._give_up(when, outstanding, f"still running after {timeout_s:g} s")

    def _give_up(self, when: Phase, outstanding: list[RankState], why: str) -> None:
        """Find out where these ranks are, then stop the world."""
        # Before the signal: it interrupts a sleeping call, and the rank goes on.
        self.collectives = watchdog.last_collectives(
            self.directory, self.order.spec.running, of_hung=True
        )
        pids = {
            state.rank: pid
            for state, pid in zip(self.states, self._processes.pids, strict=True)
            if state in outstanding
        }
        stacks = watchdog.dump_stacks(self.directory, pids)
        now_ns = clock.now_ns()
        for state in outstanding:
            state.hung_in, state.hung_ns = when, now_ns
            state.stack = stacks.get(state.rank, "")
            seen = "" if state.stack else " Not even its stack could be had: it may be stopped."
            state.last = f"{why}.{seen}"
        for deed, ranks in self._deeds().items():
            who = "they" if len(ranks) > 1 else "it"
            self.notes.append(f"{fold_ranks(ranks)} waited where {who} {deed}")
        self.stop()

    def _note_the_dead(self) -> None:
        for state in self.states:
            if state.exit is not None and not (state.complete or state.last or state.stopped):
                state.last = watchdog.last_event(self.directory, state.rank)
                state.stack = state.stack or watchdog.stack_text(self.directory, state.rank)
                if not state.started:
                    state.last = interpreter.last_output(self._processes.log).strip()

    def _note_disagreement(self) -> None:
        """Say which collective the ranks disagreed in, where one of them failed or died of it."""
        if not self.collectives and any(s.trouble in ("failed", "dead") for s in self.states):
            self.collectives = watchdog.disagreeing_collectives(
                self.directory, self.order.spec.running
            )

    def _drain_outputs(self) -> None:
        for place, fd in list(self._open_outputs.items()):
            with contextlib.suppress(BlockingIOError):
                while data := os.read(fd, 1 << 16):
                    self._take_output(self.states[place], data)
                del self._open_outputs[place]

    def _write_unfinished_lines(self) -> None:
        for state in self.states:
            if self._audience.show is not None and state.output:
                self._take_output(state, b"\n")

    def _take_output(self, state: RankState, data: bytes) -> None:
        if self._audience.show is None:
            state.output += data[: _MOST_OUTPUT - len(state.output)]
            return
        *lines, rest = (bytes(state.output) + data).split(b"\n")
        state.output[:] = rest
        for line in lines:
            self._audience.show(f"[rank {state.rank}] {line.decode(errors='replace')}")
