"""What the session knows of one rank, and what that means for a phase. Runs in the session."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pytest_shardcheck.worlds.channel import Message
from pytest_shardcheck.worlds.outcome import Kind, Phase, RankResult, describe_exit, raw_kind

PHASES: Final[tuple[Literal["setup", "call", "teardown"], ...]] = ("setup", "call", "teardown")


@dataclass
class RankState:
    """What the session knows of one rank."""

    rank: int
    reports: dict[str, Message] = field(default_factory=dict)
    subtests: list[Message] = field(default_factory=list)
    readings: list[dict[str, Any]] = field(default_factory=list)
    abandoned: list[str] = field(default_factory=list)
    log: dict[str, Any] | None = None
    warnings: list[Message] = field(default_factory=list)
    capture_fds: list[int] = field(default_factory=list)
    output: bytearray = field(default_factory=bytearray)
    started: bool = False
    complete: bool = False
    stop: Message | None = None
    exit: int | None = None
    exit_ns: int = 0
    # Its end of the channel closes as it dies, with its connections to its peers: before any of
    # them can report that, and long before a busy nursery tells how it ended.
    gone: bool = False
    seen_ns: int = 0  # when it was last seen not to be gone
    stopped: bool = False
    hung_in: Phase | None = None
    hung_ns: int = 0
    stack: str = ""
    last: str = ""
    # Which exchange between ranks it waits in (0: none), and what it did that made it wait there.
    gathering: int = 0
    deed: str = ""

    @property
    def extra(self) -> dict[str, Any]:
        """Return what came with the report of its call, by name."""
        extra: dict[str, Any] = self.reports.get("call", {}).get("extra", {})
        return extra

    @property
    def phase(self) -> Phase:
        """Return the phase that the rank is in."""
        if not self.started:
            return "start"
        for when in PHASES:
            if when not in self.reports and not (when == "call" and self._without_call):
                return when
        return "exit"

    @property
    def lost(self) -> bool:
        """Tell whether the rank was gone before it had completed: it has died by itself."""
        return self.gone and not self.complete

    @property
    def _without_call(self) -> bool:
        setup = self.reports.get("setup")
        return setup is not None and setup["report"]["outcome"] != "passed"

    def settled(self, when: str) -> bool:
        """Tell whether nothing more is to come from this rank for a phase."""
        if when in self.reports or self.exit is not None:
            return True
        if when == "exit":
            return False
        return self.complete or (when == "call" and self._without_call)

    def result(self, when: Phase) -> RankResult:
        """Return what this rank's state means for a phase."""
        if self.hung_in is not None:
            return self._without_report("hung", self.hung_in, self.hung_ns)
        report = self.reports.get(when)
        if report is None and self._ended_badly:
            # A rank that failed and was then stopped in a later phase has said what it had to.
            if earlier := self._earlier_trouble():
                return self._with_report(earlier)
            return self._end()
        if report is not None:
            return self._with_report(report)
        if (
            self.complete
            and not self.stopped
            and when in PHASES
            and not (when == "call" and self._without_call)
        ):
            # Whatever kept it from reporting, a test that was not seen to pass has not passed.
            detail = f"it completed without a report of its {when}"
            return RankResult(rank=self.rank, kind="dead", phase=when, detail=detail)
        return RankResult(rank=self.rank, kind="unreached", phase=when)

    @property
    def _ended_badly(self) -> bool:
        """Tell whether it ended otherwise than by leaving, or by us once it had completed."""
        if self.complete:
            return self.exit is not None and self.exit != 0 and not self.stopped
        # How it ended may not be known yet, or ever: it has not passed.
        return self.exit is not None or self.gone or self.stopped

    def reported(self, when: Phase) -> RankResult:
        """Return what this rank reported of a phase, whatever became of it."""
        return self._with_report(self.reports[when])

    @property
    def trouble(self) -> Kind:
        """Return the first trouble of this rank in any phase; "passed" where it has none so far."""
        if self.exit is not None and not self.complete:
            return "dead"
        kinds = (self._with_report(message).kind for message in self.reports.values())
        return next((kind for kind in kinds if kind != "passed"), "passed")

    def result_since(self, when: Phase) -> RankResult:
        """Return this rank's first trouble from a phase on: ranks run ahead of each other."""
        for phase in PHASES[PHASES.index(when) if when in PHASES else len(PHASES) :]:
            message = self.reports.get(phase)
            if message is not None and self._with_report(message).kind != "passed":
                return self._with_report(message)
        if self.hung_in is None and self._ended_badly and not self.complete:
            return self._end()
        return self.result(when)

    def _earlier_trouble(self) -> Message | None:
        troubled = (m for m in self.reports.values() if raw_kind(m["report"]) != "passed")
        return next(troubled, None)

    def _with_report(self, message: Message) -> RankResult:
        failed = [m["report"] for m in self.subtests if m["report"]["outcome"] == "failed"]
        kind, report = raw_kind(message["report"]), message["report"]
        if kind == "passed" and message["when"] == "call" and failed:
            # In an ordinary session it is the terminal that turns this into a failure.
            text = f"contains {len(failed)} failed subtest{'s' if len(failed) > 1 else ''}"
            kind, report = "failed", {**report, "outcome": "failed", "longrepr": text}
        return RankResult(
            rank=self.rank,
            kind=kind,
            phase=message["when"],
            time_ns=message["time_ns"],
            report=report,
            subtests=failed if message["when"] == "call" else (),
        )

    def _end(self) -> RankResult:
        """Return what an end without a completion record is: ours, or a death."""
        ours = self.stopped and self.exit in (None, -signal.SIGKILL)
        time_ns = self.seen_ns if self.gone else self.exit_ns
        return self._without_report("stopped" if ours else "dead", self.phase, time_ns)

    def _without_report(self, kind: Kind, phase: Phase, time_ns: int) -> RankResult:
        how = describe_exit(self.exit) if kind == "dead" else ""
        detail = "\n".join(filter(None, [how, self.last]))
        return RankResult(
            rank=self.rank,
            kind=kind,
            phase=phase,
            time_ns=time_ns,
            detail="\n".join(filter(None, [detail, self.stack])),
        )
