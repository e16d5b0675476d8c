"""Every way for one rank to fail, die or hang, on either rank: each as written, the next passes."""

from __future__ import annotations

import re
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest

# The first test waits for all sessions: minutes, where others keep the machine busy.
pytestmark = pytest.mark.timeout(900)

HEADER = """
    import contextlib, ctypes, faulthandler, os, signal, socket, sys, threading, time
    from pathlib import Path
    import pytest
    import torch.distributed as dist
    from pytest_shardcheck import DeadRankError

    pytestmark = pytest.mark.world_size(2)
    CULPRIT = int(Path(__file__).stem[-1])

    def kill_self(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def sleep(*_):
        time.sleep(600)

    @pytest.fixture
    def do_last(world):
        todo = []
        yield todo
        if world.rank == CULPRIT:
            for each in todo:
                each()
"""
AFTER = """
    def test_after_{name}(process_group):
        dist.barrier()
"""
# What a message must say beside what happened: what to do about it.
DIED = "a rank that ends before its completion record is a failure"
HUNG = "Raise the limit with world_size(..., timeout=SECONDS) or --shardcheck-timeout"
SKIPPED = "Skip on every rank or on none"


@dataclass(frozen=True)
class Case:
    """An inner test, the words of its short summary, and what its failure must say.

    ``{c}`` is the culprit and ``{o}`` the other rank. Spawned worlds take seconds: only what the
    start method could change is repeated there.
    """

    name: str
    words: str
    source: str
    says: tuple[str, ...] = ()
    spawned: bool = False


def _body(name: str, action: str, *says: str, words: str = "FAILED", **options) -> Case:
    """Return a case in which the culprit does something while the other waits in a barrier."""
    source = f"""
    {options.pop("mark", "")}
    def test_{name}(process_group, world):
        dist.barrier()  # or the other would see a death in its setup
        if world.rank == CULPRIT:
            {action}
        dist.barrier()
    """
    # The peer of a dead rank may see its connection break before it is stopped.
    peer = "rank {o} " if DEAD in says else "rank {o} was stopped by pytest-shardcheck in its call"
    return Case(name, words, source, (*says, peer) if words == "FAILED" else says, **options)


def _last(name: str, action: str, *says: str, words: str = "PASSED ERROR", **options) -> Case:
    """Return a case in which the body passes, and the culprit does something at its teardown."""
    source = f"""
    @pytest.mark.world_size(2, timeout={options.pop("timeout", 60)})
    def test_{name}(do_last, monkeypatch):
        do_last.append(lambda: {action})
    """
    return Case(name, words, source, says, **options)


_spawned = partial(_body, spawned=True)
FAILED = "rank {c} of 2 failed in its call"
DEAD = "rank {c} of 2 died in its call"
AT_EXIT = "rank {c} of 2 died in its exit"

CASES = [
    # Failures
    _spawned(
        "assert",
        """
            print(f"printed by {world.rank}")
            assert world.rank == world.size""",
        FAILED,
        "assert {c} == 2",
        "Captured stdout call (rank {c})",
        "printed by {c}",
    ),
    _spawned("raise", "raise ValueError('boom')", FAILED, "ValueError: boom"),
    _spawned(
        "unpicklable",
        """
            class Stubborn(Exception):
                def __init__(self, lock, second):
                    super().__init__("stubborn", lock)
                def __reduce__(self):
                    raise TypeError("never pickled")
            raise Stubborn(threading.Lock(), 2)""",
        FAILED,
        "Stubborn: ('stubborn', <unlocked",
    ),
    _body(
        "unprintable",
        """
            class Mute(Exception):
                def __repr__(self):
                    raise RuntimeError("no words")
                __str__ = __repr__
            raise Mute()""",
        FAILED,
        "Mute: <exception str() failed>",
    ),
    _body("surrogate", r"raise ValueError('caf\ud800')", FAILED, "ValueError: caf"),
    _spawned("sys_exit", "sys.exit(0)", FAILED, "SystemExit: 0"),
    _body("base_exception", "raise GeneratorExit('odd')", FAILED, "GeneratorExit: odd"),
    _body("pytest_fail", "pytest.fail('not good')", FAILED, "Failed: not good"),
    _body("no_raise", "\n            with pytest.raises(OSError): pass", FAILED, "DID NOT RAISE"),
    Case(
        "raises",
        "PASSED",
        """
    def test_raises(process_group, world):
        if world.rank == CULPRIT:
            with pytest.raises(ValueError, match="boom"):
                raise ValueError("boom")
        dist.barrier()
    """,
    ),
    Case(
        "subtest",
        "FAILED",
        """
    def test_subtest(process_group, world, subtests):
        with subtests.test(msg="the part"):
            assert world.rank != CULPRIT
        dist.barrier()
    """,
        (FAILED, "contains 1 failed subtest", "assert {c} != {c}"),
        spawned=True,
    ),
    _last(
        "fails_in_teardown",
        "pytest.fail('late')",
        "rank {c} of 2 failed in its teardown",
        "Failed: late",
    ),
    # Deaths
    _spawned(
        "sigsegv",
        "faulthandler._sigsegv()",
        DEAD,
        "killed by SIGSEGV (a crash in native code)",
        "in test_sigsegv",
        DIED,
    ),
    _spawned(
        "sigkill",
        """
            os.write(2, b"last words")
            kill_self()""",
        DEAD,
        "killed by SIGKILL (out of memory is likely",
        "Captured stderr call (rank {c}, unreported)",
        "last words",
        DIED,
    ),
    _body(
        "sigabrt",
        "\n            os.write(2, b'last words')\n            os.abort()",
        DEAD,
        "killed by SIGABRT",
        "last words",
        DIED,
    ),
    _body(
        "sigterm", "os.kill(os.getpid(), signal.SIGTERM); sleep()", DEAD, "killed by SIGTERM", DIED
    ),
    _spawned("exit_0", "os._exit(0)", DEAD, "left with exit code 0 before", DIED),
    _spawned("exit_3", "os._exit(3)", DEAD, "left with exit code 3 before", DIED),
    _body("exec", "os.execvp('true', ['true'])", DEAD, "left with exit code 0 before", DIED),
    Case(
        "without_record",
        "FAILED",
        """
    def test_without_record(world):
        if world.rank == CULPRIT:
            os.closerange(3, 256)  # returns, and nothing that it reports arrives
    """,
        (DEAD, "left with exit code", DIED),
        spawned=True,
    ),
    Case(
        "dies_in_setup",
        "ERROR",
        """
    @pytest.fixture
    def deadly(process_group, world):
        if world.rank == CULPRIT:
            kill_self()
        dist.barrier()

    def test_dies_in_setup(deadly):
        pass
    """,
        ("rank {c} of 2 died in its setup", "killed by SIGKILL", DIED),
        spawned=True,
    ),
    _last("dies_in_teardown", "kill_self()", "rank {c} of 2 died in its teardown", DIED),
    _last(
        "killed_after_its_record",
        "monkeypatch.setattr(os, '_exit', kill_self)",
        AT_EXIT,
        "killed by SIGKILL",
    ),
    _last(
        "leaves_with_7",
        "monkeypatch.setattr(os, '_exit', lambda _, exit=os._exit: exit(7))",
        AT_EXIT,
        "exit code 7",
    ),
    # Hangs
    Case(
        "hang_in_body",
        "FAILED",
        """
    @pytest.mark.world_size(2, timeout=2)
    def test_hang_in_body(world):
        if world.rank == CULPRIT:
            sleep()
    """,
        (
            "rank {c} of 2 did not end its call",
            "still running after",
            "in test_hang_in_body",
            HUNG,
        ),
        spawned=True,
    ),
    Case(
        "hang_before_a_barrier",
        "FAILED",
        """
    @pytest.mark.world_size(2, timeout=3)
    def test_hang_before_a_barrier(process_group, world):
        if world.rank == CULPRIT:
            sum(range(10**12))  # looks at no signal
        dist.barrier()
    """,
        (
            "did not end its call: still running after",
            "in test_hang_before_a_barrier",
            "rank {o} waits in barrier #1; rank {c} is 1 behind.",
            HUNG,
        ),
    ),
    Case(
        "hang_in_a_c_call",
        "FAILED",
        """
    @pytest.mark.world_size(2, timeout=2)
    def test_hang_in_a_c_call(process_group, world):
        if world.rank == CULPRIT:
            ctypes.PyDLL(None).sleep(600)  # holds the GIL until the dump's signal ends it
        dist.barrier()
    """,
        ("rank {o} waits in barrier #1; rank {c} is 1 behind.", HUNG),
    ),
    Case(
        "stops_itself",
        "FAILED",
        """
    @pytest.mark.world_size(2, timeout=2)
    def test_stops_itself(world):
        if world.rank == CULPRIT:
            os.kill(os.getpid(), signal.SIGSTOP)
    """,
        ("rank {c} of 2 did not end its call", "Not even its stack could be had", HUNG),
    ),
    _last(
        "hang_in_teardown",
        "sleep()",
        "rank {c} of 2 did not end its teardown",
        "still running after",
        "in sleep",
        HUNG,
        timeout=2,
        spawned=True,
    ),
    _last(
        "hang_at_exit",
        "setattr(os, '_exit', sleep)",
        "rank {c} of 2 did not end its exit",
        "still running after",
        "in sleep",
        HUNG,
        timeout=2,
        spawned=True,
    ),
    _last(
        "hang_before_its_record",
        "setattr(sys.__stdout__, 'flush', sleep)",
        "rank {c} of 2 did not end its exit",
        "in sleep",
        HUNG,
        timeout=2,
    ),
    # Skips and expected failures
    _spawned(
        "skip_alone",
        "pytest.skip('no need')",
        "rank {c} of 2 skipped the test alone in its call",
        "no need",
        SKIPPED,
    ),
    _body(
        "importorskip_alone",
        "pytest.importorskip('there_is_no_such_module')",
        "rank {c} of 2 skipped the test alone in its call",
        "could not import 'there_is_no_such_module'",
        SKIPPED,
    ),
    _body(
        "skip_alone_under_xfail",
        "pytest.skip('no need')",
        "rank {c} of 2 skipped the test alone in its call",
        mark="@pytest.mark.xfail",
    ),
    _spawned("xfail", "raise ValueError", words="XFAIL", mark="@pytest.mark.xfail"),
    _body("xfail_call", "pytest.xfail('known')", words="XFAIL"),
    _body(
        "xfail_strict", "raise ValueError", words="XFAIL", mark="@pytest.mark.xfail(strict=True)"
    ),
    _body(
        "xfail_of_another_error",
        "raise ValueError",
        FAILED,
        "ValueError",
        mark="@pytest.mark.xfail(raises=OSError)",
    ),
    Case(
        "xpass_strict",
        "FAILED",
        """
    @pytest.mark.xfail(strict=True, reason="the reason")
    def test_xpass_strict(process_group):
        dist.barrier()
    """,
        ("[XPASS(strict)] the reason",),
    ),
    _spawned(
        "sigkill_under_xfail",
        "kill_self()",
        DEAD,
        "killed by SIGKILL",
        "raises=pytest_shardcheck.DeadRankError",
        mark="@pytest.mark.xfail",
    ),
    _body(
        "sigkill_under_strict_xfail",
        "kill_self()",
        DEAD,
        "raises=pytest_shardcheck.DeadRankError",
        mark="@pytest.mark.xfail(strict=True)",
    ),
    _body(
        "sigkill_expected",
        "kill_self()",
        words="XFAIL",
        mark="@pytest.mark.xfail(raises=DeadRankError, strict=True)",
    ),
    # Tampering
    Case(
        "garbage",
        "FAILED or ERROR",
        """
    def test_garbage(world):
        if world.rank == CULPRIT:
            for fd in map(int, os.listdir("/proc/self/fd")):
                with contextlib.suppress(OSError):
                    with socket.socket(fileno=os.dup(fd)) as ours:
                        ours.send(b"\\xff" * 100)
    """,
        ("something else wrote into shardcheck's socket",),
    ),
    Case(
        "forked_child_returns",
        "PASSED",
        """
    def test_forked_child_returns(process_group, world):
        if world.rank == CULPRIT and os.fork() == 0:
            return
        dist.barrier()
    """,
    ),
    Case(
        "forked_child_stays",
        "PASSED",
        """
    def test_forked_child_stays(process_group, world):
        if world.rank == CULPRIT and os.fork() == 0:
            sleep()
        dist.barrier()
    """,
    ),
]
WORLDS = [("fork", 0), ("fork", 1), ("spawn", 1)]
RUNS = [
    pytest.param((start, culprit), case, id=f"{start}-{culprit}-{case.name}")
    for start, culprit in WORLDS
    for case in CASES
    if case.spawned or start == "fork"
]


def session_text(start: str) -> str:
    """Return a test file of all cases; in spawned worlds one passing test follows every six."""
    parts = [textwrap.dedent(HEADER)]
    for number, case in enumerate(case for case in CASES if case.spawned or start == "fork"):
        parts.append(textwrap.dedent(case.source))
        if is_followed(start, number):
            parts.append(textwrap.dedent(AFTER).format(name=case.name))
    text = "\n".join(parts)
    # A spawned rank still imports parts of torch in its setup: more than 2 s on a busy machine.
    return re.sub(r"timeout=[23]\b", "timeout=15", text) if start == "spawn" else text


def is_followed(start: str, number: int) -> bool:
    return start == "fork" or number % 6 == 5


@pytest.fixture(scope="module")
def sessions(run_session):
    """Run all sessions at once: most of their time is spent in waiting for a hang."""
    with ThreadPoolExecutor(len(WORLDS)) as pool:
        return {
            (start, culprit): pool.submit(
                run_session,
                {f"test_culprit_{culprit}.py": session_text(start)},
                "-rA",
                f"--shardcheck-start={start}",
                timeout_s=900,  # spawned worlds on a busy machine
            )
            for start, culprit in WORLDS
        }


@pytest.mark.parametrize(("world", "case"), RUNS)
def test_it_ends_as_it_must(sessions, world, case):
    session, culprit = sessions[world].result(), world[1]
    name = f"test_{case.name}[world2]"
    words = session.results.get(name)
    if not case.says:
        assert words == case.words.split(), session.failure(name)
        return
    text = session.failure(name)
    for part in case.says:
        assert part.format(c=culprit, o=1 - culprit) in text
    if case.words == "FAILED or ERROR":  # in whichever phase it is seen, but once
        assert len(words) == 1, text
    else:
        assert sorted(words) == sorted(case.words.split()), text


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_every_test_after_is_unharmed(sessions, world):
    session = sessions[world].result()
    after = {name: words for name, words in session.results.items() if "test_after_" in name}
    assert len(after) == session_text(world[0]).count("def test_after_")
    assert all(words == ["PASSED"] for words in after.values()), after
    assert session.returncode == pytest.ExitCode.TESTS_FAILED
    assert "INTERNALERROR" not in session.out


@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_no_process_and_no_file_is_left(sessions, world):
    session = sessions[world].result()
    assert session.processes_left() == []
    assert session.files_left() == []
