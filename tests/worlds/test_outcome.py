"""Many ranks' reports become one outcome."""

from __future__ import annotations

import pytest

from pytest_shardcheck.worlds.outcome import (
    RankResult,
    crash_line,
    decide,
    describe_exit,
    raw_kind,
)

SECOND = 1_000_000_000


def result(rank, kind="passed", text="boom", time_ns=0, phase="call"):
    report = {"outcome": "failed", "longrepr": text} if kind in ("failed", "skipped") else None
    return RankResult(rank=rank, kind=kind, phase=phase, time_ns=time_ns, report=report)


def test_it_passes_only_when_every_rank_passed():
    assert decide([result(0), result(1)]).kind == "passed"
    for kind in ("failed", "dead", "hung", "skipped", "stopped", "xfailed"):
        assert decide([result(0), result(1, kind)]).kind != "passed"


def test_skipped_on_all_is_a_skip_and_on_some_a_failure():
    assert decide([result(0, "skipped"), result(1, "skipped")]).kind == "skipped"
    some = decide([result(0), result(1, "skipped")])
    assert some.kind == "failed"
    assert some.headline == "rank 1 of 2 skipped the test alone in its call"


def test_the_rank_that_failed_first_leads():
    outcome = decide([result(0, "failed", "late", 2), result(1, "failed", "early", 1)])
    assert outcome.lead.rank == 1
    assert outcome.headline == "rank 1 of 2 failed in its call first"
    assert [other.rank for other in outcome.others] == [0]


def test_equal_failures_are_folded_and_addresses_do_not_count():
    texts = ["<a at 0x12>", "<a at 0x34>", "other", "<a at 0x56>"]
    outcome = decide([result(rank, "failed", text) for rank, text in enumerate(texts)])
    assert outcome.headline == "ranks 0-1, 3 of 4 failed in their call first"
    assert [other.rank for other in outcome.others] == [2]


def test_a_dead_rank_leads_over_the_peers_that_noticed_it_sooner_than_the_session():
    peer = result(0, "failed", "Connection closed by peer", time_ns=5 * SECOND)
    dead = result(1, "dead", time_ns=5 * SECOND + SECOND // 2)
    assert decide([peer, dead]).lead.rank == 1
    much_later = result(1, "dead", time_ns=7 * SECOND)
    assert decide([peer, much_later]).lead.rank == 0


def test_dead_or_hung_is_the_kind_whatever_leads():
    expected = result(0, "xfailed", time_ns=0)
    assert decide([expected, result(1, "dead", time_ns=9 * SECOND)]).kind == "dead"
    assert decide([result(0, "failed"), result(1, "hung")]).kind == "hung"


def test_an_expected_failure_beside_a_pass_is_expected_and_beside_a_failure_is_not():
    assert decide([result(0), result(1, "xfailed")]).kind == "xfailed"
    assert decide([result(0, "stopped"), result(1, "xfailed")]).kind == "xfailed"
    assert decide([result(0, "failed"), result(1, "xfailed")]).kind == "failed"


def test_ranks_that_were_stopped_come_last_and_do_not_make_a_failure_the_first():
    outcome = decide([result(0, "stopped", time_ns=0), result(1, "failed", time_ns=9)])
    assert outcome.lead.rank == 1
    assert outcome.headline == "rank 1 of 2 failed in its call"


@pytest.mark.parametrize(
    ("report", "kind"),
    [
        ({"outcome": "passed"}, "passed"),
        ({"outcome": "passed", "wasxfail": ""}, "passed"),
        ({"outcome": "failed", "longrepr": "[XPASS(strict)] why"}, "passed"),
        ({"outcome": "failed", "longrepr": "why"}, "failed"),
        ({"outcome": "skipped", "longrepr": ["f", 1, "Skipped: why"]}, "skipped"),
        ({"outcome": "skipped", "wasxfail": "why"}, "xfailed"),
    ],
)
def test_a_rank_says_what_happened_and_the_session_judges_the_mark(report, kind):
    assert raw_kind(report) == kind


def test_a_crash_in_one_line():
    crash = {"path": "f.py", "lineno": 3, "message": "ValueError: a\nb"}
    assert crash_line({"longrepr": {"reprcrash": crash}}) == "f.py:3: ValueError: a"
    assert crash_line({"longrepr": ["f.py", 3, "Skipped: why"]}) == "f.py:3: Skipped: why"
    assert crash_line({"longrepr": "text\nmore"}) == "text"
    assert crash_line(None) == "no reason given"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (-9, "killed by SIGKILL (out of memory is likely"),
        (-11, "killed by SIGSEGV (a crash in native code)"),
        (-15, "killed by SIGTERM"),
        (-63, "killed by signal 63"),
        (0, "left with exit code 0 before its test was done"),
        (3, "left with exit code 3"),
    ],
)
def test_an_end_is_described(status, words):
    assert describe_exit(status).startswith(words)
