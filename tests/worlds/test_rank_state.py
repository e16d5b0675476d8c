"""What the session knows of a rank, and what that means for a phase."""

from __future__ import annotations

import pytest

from pytest_shardcheck.worlds.rank_state import RankState


def message(when, outcome="passed", **report):
    return {"when": when, "time_ns": 1, "report": {"outcome": outcome, "longrepr": None, **report}}


def state(*messages, **known):
    reports = {m["when"]: m for m in messages}
    return RankState(rank=1, started=True, reports=reports, **known)


PASSED = tuple(message(when) for when in ("setup", "call", "teardown"))


def test_a_rank_moves_through_its_phases():
    assert RankState(rank=0).phase == "start"
    assert state().phase == "setup"
    assert state(*PASSED[:1]).phase == "call"
    assert state(message("setup", "failed")).phase == "teardown"
    assert state(*PASSED).phase == "exit"


def test_a_clean_rank_passes_every_phase():
    clean = state(*PASSED, complete=True, exit=0)
    kinds = [clean.result(when).kind for when in ("setup", "call", "teardown", "exit")]
    assert kinds == ["passed", "passed", "passed", "unreached"]


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
def test_a_completed_rank_without_a_report_has_not_passed(when):
    reports = [m for m in PASSED if m["when"] != when]
    result = state(*reports, complete=True, exit=0).result(when)
    assert result.kind == "dead"
    assert result.detail == f"it completed without a report of its {when}"


def test_a_call_that_setup_prevented_is_not_missed():
    assert state(message("setup", "skipped"), complete=True).result("call").kind == "unreached"


def test_an_exit_code_after_completion_is_no_clean_end():
    result = state(*PASSED, complete=True, exit=3).result("exit")
    assert (result.kind, result.phase) == ("dead", "exit")
    assert result.detail.startswith("left with exit code 3")


def test_an_end_without_completion_is_a_death_and_ours_a_stop():
    assert state(*PASSED[:1], exit=-9).result("call").kind == "dead"
    assert state(*PASSED[:1], exit=-9, stopped=True).result("call").kind == "stopped"


def test_who_is_gone_has_not_passed_though_nobody_tells_how_it_ended():
    gone = state(*PASSED[:1], gone=True, seen_ns=7)
    assert (gone.result("call").kind, gone.result("call").time_ns) == ("dead", 7)
    assert gone.result_since("setup").kind == "dead"
    assert gone.result("call").detail.startswith("its connection to the session broke")
    assert state(*PASSED[:1], stopped=True).result("call").kind == "stopped"
    assert state(*PASSED, complete=True, gone=True).result("call").kind == "passed"


def test_who_died_of_another_signal_than_ours_was_not_stopped():
    assert state(*PASSED[:1], exit=-11, stopped=True).result("call").kind == "dead"
    assert state(*PASSED[:1], exit=0, stopped=True).result("call").kind == "dead"


def test_what_was_reported_before_a_stop_is_what_counts():
    failed = state(PASSED[0], message("call", "failed"), exit=-9, stopped=True)
    assert failed.result("call").kind == "failed"
    assert failed.result("teardown").kind == "failed"


def test_a_rank_that_ran_ahead_shows_its_later_trouble():
    ahead = state(PASSED[0], message("call", "failed"))
    assert ahead.result("setup").kind == "passed"
    assert ahead.result_since("setup").kind == "failed"
    died = state(PASSED[0], exit=-11)
    assert died.result("setup").kind == "passed"
    assert died.result_since("setup").kind == "dead"


def test_a_failed_subtest_fails_its_test():
    with_subtest = state(*PASSED, complete=True, exit=0)
    with_subtest.subtests.append({"report": {"outcome": "failed"}})
    assert with_subtest.trouble == "failed"
    result = with_subtest.result("call")
    assert result.kind == "failed"
    assert result.report["longrepr"] == "contains 1 failed subtest"
    with_subtest.subtests[0]["report"]["outcome"] = "skipped"
    assert with_subtest.result("call").kind == "passed"


def test_trouble():
    assert state(*PASSED).trouble == "passed"
    assert state(PASSED[0], exit=1).trouble == "dead"
    assert state(message("setup", "skipped")).trouble == "skipped"
    hung = state(PASSED[0], hung_in="call", exit=-9)
    assert hung.result("call").kind == "hung"
