"""The session's live log and log file carry what ranks log, each line with its rank."""

from __future__ import annotations

LOGGING = """
    import logging
    import pytest

    log = logging.getLogger("training")

    @pytest.mark.world_size(2)
    def test_logs(world):
        log.info("step of %d", world.size)
        if world.rank == 1:
            log.debug("of no interest")
            try:
                1 / 0
            except ZeroDivisionError:
                log.exception("lost")

    def test_plain():
        log.info("no world")
"""


def test_the_live_log_shows_each_ranks_lines_as_pytest_formats_them(run_session):
    session = run_session({"test_it.py": LOGGING}, "--log-cli-level=INFO")
    assert session.outcomes == {"passed": 2}
    for rank in (0, 1):
        assert f"INFO     training:test_it.py:9 [rank {rank}] step of 2" in session.out
    assert "ERROR    training:test_it.py:15 [rank 1] lost" in session.out
    assert "ZeroDivisionError: division by zero" in session.out
    assert "INFO     training:test_it.py:18 no world" in session.out
    assert "of no interest" not in session.out


def test_the_log_file_has_them_and_the_report_still_names_them_by_rank(run_session):
    failing = LOGGING + "\n        assert False\n"
    session = run_session({"test_it.py": failing}, "--log-file=out.log", "--log-level=INFO")
    text = (session.temporary.parent / "out.log").read_text()
    assert text.count("[rank 0] step of 2") == text.count("[rank 1] step of 2") == 1
    assert text.count("[rank 1] lost") == 1
    # Nothing of a rank is taken for the session's own log.
    assert "[rank" not in session.failure("test_plain")


def test_without_either_nothing_is_sent(run_session):
    session = run_session({"test_it.py": LOGGING}, "-v")
    assert session.outcomes == {"passed": 2}
    assert "step of" not in session.out


def test_a_record_whose_arguments_do_not_fit_is_reported_as_logging_does(run_session):
    session = run_session(
        {
            "test_it.py": """
                import logging
                import pytest

                @pytest.mark.world_size(1)
                def test_logs(world):
                    logging.raiseExceptions = False
                    logging.error("%d of %d", 1)
                    logging.error("then this")
            """
        },
        "--log-cli-level=INFO",
    )
    assert "[rank 0] then this" in session.out
