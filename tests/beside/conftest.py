"""What the tests beside other plugins share: sessions that run two at a time."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def run_two_sessions(run_session):
    """Return a function that runs two sessions at once: most of a session is one process."""

    def run(*sessions):
        started = [run_session.start(files, *arguments) for files, *arguments in sessions]
        try:
            for process, session in started:
                session.out, _ = process.communicate(timeout=200)
                session.returncode = process.returncode
        finally:
            for process, _ in started:
                process.kill()
        return [session for _, session in started]

    return run
