"""A world's failure in the form that pytest prints, stores and sends over xdist."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import pytest

from pytest_shardcheck import _compat
from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.worlds import no_terminal
from pytest_shardcheck.worlds.outcome import Outcome, RankResult, crash_line, in_short
from pytest_shardcheck.worlds.world import World

_E = TypeVar("_E", bound=BaseException)

_ATTRIBUTE: Final = "_shardcheck_longrepr"

_ADVICE: Final = {
    "dead": "The test can't pass: a rank that ends before its completion record is a failure, also "
    "under xfail (name the error to expect it: raises=pytest_shardcheck.DeadRankError).",
    "hung": "Raise the limit with world_size(..., timeout=SECONDS) or --shardcheck-timeout if the "
    "test is only slow.",
    "skipped": "Skip on every rank or on none: the others would wait for the one that left.",
}


def located(error: _E, longrepr: object) -> _E:
    """Attach to an exception what its report is to show instead of the session's traceback."""
    setattr(error, _ATTRIBUTE, longrepr)
    return error


def is_located(error: BaseException) -> bool:
    """Tell whether an exception is one of ours, with its report attached."""
    return hasattr(error, _ATTRIBUTE)


def apply_location(report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Show a rank's failure in the report, not ours."""
    longrepr = getattr(call.excinfo.value, _ATTRIBUTE, None) if call.excinfo is not None else None
    if longrepr is not None:
        report.longrepr = longrepr


def summary(outcome: Outcome) -> str:
    """Return the failure in one line."""
    assert outcome.lead is not None
    several = bool(outcome.same)
    return f"{fold_ranks([outcome.lead.rank, *outcome.same])} {_one_line(outcome.lead, several)}"


def plain(item: pytest.Item, text: str) -> Any:
    """Return text as a failure located at the test."""
    path, line, _ = item.location
    crash = _compat.file_location(path, (line or 0) + 1, text.splitlines()[0])
    return _compat.chain_of([(_compat.native_traceback([text + "\n"]), crash, None)])


def representation(item: pytest.Item, outcome: Outcome, world: World, first: str = "") -> Any:
    """Return the whole failure: who failed first and how, then the others in short.

    ``first`` is what somebody else had to say, such as pytest-timeout.
    """
    assert outcome.lead is not None
    lead = outcome.lead
    restored = _restored(item, lead)
    headline = [f"{line}\n" for line in (first, outcome.headline) if line]
    elements: list[Any] = [(_compat.native_traceback(headline), None, None)]
    for subtest in lead.subtests:
        title = f"subtest {_compat.subtest_name(subtest)}\n"
        elements.append((_compat.native_traceback([title]), None, None))
        elements += _restored_chain(item, subtest)
    elements += restored or [(_compat.native_traceback([f"{lead.detail}\n"]), None, None)]
    tail = _tail(item, outcome, world)
    path, line, _ = item.location
    message = f"{fold_ranks([lead.rank, *outcome.same])}{_reason(lead, bool(outcome.same))}"
    message = f"{first}: {message}" if first else message
    if lead.kind == "stopped" and world.notes:
        message += f": {world.notes[0]}"
    crash = _crash(lead, message) or _compat.file_location(path, (line or 0) + 1, message)
    elements.append((_compat.native_traceback([f"{line}\n" for line in tail]), crash, None))
    return _compat.chain_of(elements)


def _tail(item: pytest.Item, outcome: Outcome, world: World) -> list[str]:
    assert outcome.lead is not None
    lines = []
    for other in outcome.others:
        lines.append(f"rank {other.rank} {_one_line(other)}")
        lines += other.detail.splitlines()[1:]  # where a rank hangs is what the reader needs
    lines += [f"note: {note}" for note in world.notes]
    lines += world.collectives
    if item.config.option.usepdb:
        lines.append(f"--pdb: {no_terminal.ADVICE}.")
    if outcome.lead.kind in _ADVICE:
        lines.append(_ADVICE[outcome.lead.kind])
    return lines


def _one_line(result: RankResult, several: bool = False) -> str:
    """Return what became of a rank, and the first line of why, to follow its name."""
    what = in_short(result.kind, result.phase, several=several)
    if result.report is not None:
        return f"{what}: {crash_line(result.report)}"
    return f"{what}: {result.detail.splitlines()[0]}" if result.detail else what


def _reason(result: RankResult, several: bool) -> str:
    crash = _report_crash(result.report)
    return f": {crash['message']}" if crash is not None else f" {_one_line(result, several)}"


def _crash(result: RankResult, message: str) -> Any:
    crash = _report_crash(result.report)
    if crash is None:
        return None
    return _compat.file_location(crash["path"], crash["lineno"], message)


def _report_crash(report: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    longrepr = report.get("longrepr") if report is not None else None
    crash = longrepr.get("reprcrash") if isinstance(longrepr, Mapping) else None
    return crash if isinstance(crash, Mapping) else None


def _restored(item: pytest.Item, result: RankResult) -> list[Any]:
    return _restored_chain(item, result.report) if result.report is not None else []


def _restored_chain(item: pytest.Item, data: Mapping[str, Any]) -> list[Any]:
    """Return a rank's own traceback, its chained causes included, as parts of a longer one."""
    report = _restore(item, data)
    longrepr = report.longrepr
    if isinstance(longrepr, _compat.ExceptionChainRepr):
        return list(longrepr.chain)
    if hasattr(longrepr, "reprtraceback"):  # --tb=native
        return [(longrepr.reprtraceback, longrepr.reprcrash, None)]
    text = report.longreprtext if isinstance(longrepr, str) else crash_line(data)
    return [(_compat.native_traceback([f"{text}\n"]), None, None)]


def _restore(item: pytest.Item, data: Mapping[str, Any]) -> Any:
    """Return the report that a rank serialised; pytest builds it in the very data it is given."""
    return item.config.hook.pytest_report_from_serializable(
        config=item.config, data=copy.deepcopy(dict(data))
    )
