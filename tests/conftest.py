"""Run whole sessions in processes of their own, and look at what they leave behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

_MARK = "SHARDCHECK_TEST_SESSION"


@dataclass
class Session:
    """A pytest session that has ended; ``temporary`` is where its temporary files were."""

    returncode: int
    out: str
    temporary: Path
    mark: str

    @property
    def outcomes(self) -> dict[str, int]:
        last = self.out.strip().splitlines()[-1]
        return {
            word.removesuffix("s") if word == "errors" else word: int(number)
            for number, word in re.findall(
                r"(\d+) (passed|failed|skipped|xfailed|xpassed|errors?)", last
            )
        }

    @property
    def results(self) -> dict[str, list[str]]:
        """Return the words of the short summary (``-rA``) for each test, without its file."""
        words: dict[str, list[str]] = {}
        line = r"^(PASSED|FAILED|ERROR|XFAIL|XPASS) (?:at \w+ of )?\S+?::(\S+)"
        for word, name in re.findall(line, self.out, re.MULTILINE):
            words.setdefault(name.replace("::", "."), []).append(word)
        return words

    def failure(self, name: str) -> str:
        """Return what the session printed of one failed test."""
        _, _, rest = self.out.partition(f" {name} ____")
        assert rest, f"{name} did not fail:\n{self.out}"
        return rest.partition("\n____")[0].partition("\n====")[0]

    def processes_left(self) -> list[str]:
        """Return the processes that still carry the session's mark; what is dying gets a moment."""
        deadline = time.monotonic() + 20
        while (left := marked_processes(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def files_left(self) -> list[str]:
        return [path.name for path in self.temporary.glob("shardcheck-*")]


def marked_processes(mark: str) -> list[str]:
    """Return the command lines of the processes whose environment has ``mark``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if mark in (entry / "environ").read_text(errors="replace"):
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
    return found


class SessionRunner:
    def __init__(self, base: Path) -> None:
        self._base = base

    def start(self, files: dict[str, str], *args: str, **popen) -> tuple[subprocess.Popen, Session]:
        """Start a session over ``files`` in a folder of its own."""
        root = Path(self._base / uuid.uuid4().hex[:8])
        temporary = root / "temporary"
        temporary.mkdir(parents=True)
        (root / "pytest.ini").write_text("[pytest]\n")
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))
        session = Session(0, "", temporary, f"{_MARK}={uuid.uuid4().hex}")
        # On CI pytest repeats whole messages in its short summary.
        inherited = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("PYTEST_") and k not in ("CI", "BUILD_NUMBER")
        }
        name, _, value = session.mark.partition("=")
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:randomly", *args],
            cwd=root,
            env={**inherited, "TMPDIR": str(temporary), name: value, "COLUMNS": "120"},
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT,
                "text": True,
                **popen,
            },
        )
        return process, session

    def __call__(self, files: dict[str, str], *args: str, timeout_s: float = 400) -> Session:
        """Run a session to its end; its output can be read whole only when nobody holds it open."""
        process, session = self.start(files, *args)
        try:
            session.out, _ = process.communicate(timeout=timeout_s)
        finally:
            process.kill()
        session.returncode = process.returncode
        return session


@pytest.fixture(scope="session")
def run_session(tmp_path_factory) -> SessionRunner:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # As a shell starts what runs in the background; the sessions would ignore it too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return SessionRunner(tmp_path_factory.mktemp("sessions"))


@pytest.fixture(scope="session", autouse=True)
def _no_job_summary():
    """Sessions inside of tests must not write on the page of the CI job that runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GITHUB_STEP_SUMMARY", raising=False)
        yield


@pytest.fixture
def counted():
    """Return the live counter alone, from a test's setup on."""
    from counted import Counted  # not above: it imports torch, and most tests need none here

    counter = Counted()
    counter.start()
    yield counter
    counter.stop()
