"""Many ranks' reports become one outcome. Pure functions over plain data; no pytest, no clock."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_shardcheck.vocabulary.ranks import fold_ranks

Kind = Literal["passed", "skipped", "xfailed", "failed", "dead", "hung", "stopped", "unreached"]
Phase = Literal["start", "setup", "call", "teardown", "exit"]

# When a rank dies its peers' collectives fail at once, and may report it before the death is seen.
_DEATH_LEADS_BY_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """How one rank came out of one phase; ``report`` is pytest's, serialised."""

    rank: int
    kind: Kind
    phase: Phase
    time_ns: int = 0
    report: Mapping[str, Any] | None = None
    subtests: Sequence[Mapping[str, Any]] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How the world came out of one phase.

    ``lead`` is the failure (or skip) to show first, ``same`` the ranks whose failure is equal to
    it, ``others`` every further troubled rank; ``size`` is that of the world.
    """

    kind: Kind
    lead: RankResult | None = None
    same: tuple[int, ...] = ()
    others: tuple[RankResult, ...] = field(default=())
    size: int = 1

    @property
    def headline(self) -> str:
        """Return the line that leads the failure's report."""
        assert self.lead is not None
        who = fold_ranks([self.lead.rank, *self.same])
        # Ranks that hang do so together.
        later = any(other.kind != "stopped" for other in self.others)
        first = " first" if later and self.lead.kind != "hung" else ""
        what = in_short(self.lead.kind, self.lead.phase, several=bool(self.same))
        return f"{who} of {self.size} {what}{first}"


def in_short(kind: Kind, phase: Phase, *, several: bool = False) -> str:
    """Return what became of a rank, or of several, to follow its name."""
    verbs = {
        "dead": "died in",
        "hung": "did not end",
        "skipped": "skipped the test alone in",
        "stopped": f"{'were' if several else 'was'} stopped by pytest-shardcheck in",
        "xfailed": "failed as expected in",
    }
    return f"{verbs.get(kind, f'{kind} in')} {'their' if several else 'its'} {phase}"


def decide(results: Sequence[RankResult], *, size: int | None = None) -> Outcome:
    """Return the outcome of a phase from the results of all ranks that run.

    ``size`` is that of the world, where only some of its ranks are simulated.

    A test passes only when every rank passed. A rank that died or hung is a failure of its own
    kind, whatever its peers report: it must never read as an expected failure.
    """
    size = len(results) if size is None else size
    kinds = {result.kind for result in results}
    troubled = sorted(
        (result for result in results if result.kind not in ("passed", "unreached")),
        key=_lead_order,
    )
    if not troubled:
        return Outcome(kind="passed", size=size)
    kind = _kind(kinds)
    first = troubled[0]
    alike = [result for result in troubled if _signature(result) == _signature(first)]
    # Of equal failures the lowest rank's is shown, so that the report is the same each time.
    lead, *same = sorted(alike, key=lambda result: result.rank)
    others = [result for result in troubled if result not in alike]
    return Outcome(
        kind=kind, lead=lead, same=tuple(r.rank for r in same), others=tuple(others), size=size
    )


def _kind(kinds: set[Kind]) -> Kind:
    worst: tuple[Kind, ...] = ("hung", "dead", "failed")
    for kind in worst:
        if kind in kinds:
            return kind
    if "xfailed" in kinds:
        return "xfailed"
    if kinds == {"skipped"}:
        return "skipped"
    # Skipped on some is never a pass; stopped without any other trouble waited for nobody.
    return "failed" if "skipped" in kinds else "hung"


def _lead_order(result: RankResult) -> tuple[bool, bool, int, int]:
    early = _DEATH_LEADS_BY_NS if result.kind in ("dead", "hung") else 0
    # A lone skip or an expected failure explains less than a real one.
    mild = result.kind in ("skipped", "xfailed")
    return result.kind == "stopped", mild, result.time_ns - early, result.rank


def _signature(result: RankResult) -> tuple[Kind, Phase, object]:
    """Return what makes two failures the same one.

    Addresses, and the rank as our own texts name it, differ where the failure does not.
    """
    text = str(_failure(result.report)) if result.report is not None else result.detail
    return result.kind, result.phase, re.sub(r"0x[0-9a-fA-F]+|\brank[= ]\d+", "", text)


def _failure(report: Mapping[str, Any]) -> object:
    """Return where a serialised failure passed through, and every message on its way.

    The arguments that a traceback shows are left out: some fixture is another one in every rank.
    """
    longrepr = report.get("longrepr")
    if not isinstance(longrepr, Mapping):
        return longrepr
    chain = longrepr.get("chain") or [[longrepr.get("reprtraceback"), longrepr.get("reprcrash")]]
    return [
        (part[1] and part[1].get("message"), [_location(entry) for entry in _entries(part[0])])
        for part in chain
    ]


def _entries(traceback: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    return traceback.get("reprentries", ()) if traceback else ()


def _location(entry: Mapping[str, Any]) -> object:
    data = entry.get("data", {})
    return data.get("reprfileloc") or data.get("lines")


def crash_line(report: Mapping[str, Any] | None) -> str:
    """Return a failure in one line: where, and what."""
    longrepr = report.get("longrepr") if report is not None else None
    if isinstance(longrepr, Mapping) and (crash := longrepr.get("reprcrash")):
        message = str(crash["message"]).strip().splitlines() or [""]
        return f"{crash['path']}:{crash['lineno']}: {message[0]}"
    if isinstance(longrepr, (list, tuple)) and len(longrepr) == 3:
        path, line, reason = longrepr
        return f"{path}:{line}: {reason}"
    return str(longrepr).strip().splitlines()[0] if longrepr else "no reason given"


def raw_kind(report: Mapping[str, Any]) -> Kind:
    """Return what a serialised report says, with expected failures and passes undone.

    A strict xfail that passes is a pass here: the session's own mark judges the whole world.
    """
    outcome = report["outcome"]
    if outcome == "skipped":
        return "xfailed" if "wasxfail" in report else "skipped"
    if outcome == "failed" and str(report.get("longrepr")).startswith("[XPASS(strict)]"):
        return "passed"
    return "passed" if outcome == "passed" else "failed"


def describe_exit(status: int | None) -> str:
    """Return how a process ended, and what that usually means; None where nobody could tell."""
    if status is None:
        return "its connection to the session broke, and how it ended was not told in time"
    if status >= 0:
        return f"left with exit code {status} before its test was done (os._exit, or C code's exit)"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hints = {
        "SIGKILL": "out of memory is likely (see dmesg), unless someone killed it",
        "SIGSEGV": "a crash in native code",
        "SIGABRT": "native code gave up; its last words are in the captured stderr",
        "SIGBUS": "a full /dev/shm or temporary file system is likely",
    }
    return f"killed by {name}" + (f" ({hints[name]})" if name in hints else "")
