"""Surroundings that are against us: a world works as ever, or says at once what is missing."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORLDS = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    @pytest.mark.max_memory(params="1 KiB")
    def test_passes(process_group, shardcheck, world, tmp_path):
        (tmp_path / f"rank{world.rank}").touch()
        (world.tmp_path / "own").touch()
        value = torch.tensor([float(world.rank + 1)])
        dist.all_reduce(value)
        assert value.item() == 3
        with shardcheck.measure(torch.nn.Linear(4, 4)):
            torch.ones(200, 200) @ torch.ones(200, 200)
            torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward()
        assert len(list(tmp_path.iterdir())) > 0

    @pytest.mark.world_size(2)
    def test_fails(world):
        print(f"printed by {world.rank}")
        assert world.rank == 0, "größer"

    @pytest.mark.world_size(2, timeout=TIMEOUT)
    def test_hangs(process_group, world):
        if world.rank == 0:
            dist.barrier()

    @pytest.mark.world_size(2)
    def test_the_next_passes(process_group):
        dist.barrier()
""".replace("TIMEOUT", "2")


@pytest.fixture
def run_under(run_session, tmp_path):
    """Return a function that runs a session from a shell that has run ``before``."""

    def run(files: dict[str, str], *args: str, before: str, namespace: str = ""):
        process, session = start(files, *args, before=before, namespace=namespace)
        try:
            session.out, _ = process.communicate(timeout=100)
        finally:
            process.kill()
        session.returncode = process.returncode
        return session

    def start(files: dict[str, str], *args: str, before: str, namespace: str = ""):
        # The shell takes the interpreter's place, and ends by becoming it.
        shell = tmp_path / f"shell{len(list(tmp_path.iterdir()))}"
        script = f'set -e\n{before}\nexec {shlex.quote(sys.executable)} "$@"'
        if namespace:
            script = f'exec unshare {namespace} sh -c {shlex.quote(script)} sh "$@"'
        shell.write_text(f"#!/bin/sh\n{script}\n")
        shell.chmod(0o700)
        return run_session.start(files, *args, executable=str(shell))

    run.start = start
    return run


def needs_namespaces() -> None:
    command = ["unshare", "--mount", "--uts", "sh", "-c", "mount -t tmpfs none /mnt"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not installed: no file system of its own for the session")
    if done.returncode:
        pytest.skip(f"a file system of its own needs more rights: {done.stderr.strip()}")


def assert_as_ever(session) -> None:
    assert session.results == {
        "test_passes[world2]": ["PASSED"],
        "test_fails[world2]": ["FAILED"],
        "test_hangs[world2]": ["FAILED"],
        "test_the_next_passes[world2]": ["PASSED"],
    }, session.out[-3000:]
    failure = session.failure("test_fails[world2]")
    assert "rank 1 of 2 failed in its call" in failure
    assert "größer" in failure
    assert "printed by 1" in failure
    hanging = session.failure("test_hangs[world2]")
    assert "still running after 2 s" in hanging
    assert "rank 0 waits in barrier #1; rank 1 is 1 behind." in hanging
    assert session.processes_left() == []
    assert session.files_left() == []


def test_read_only_root_no_shared_memory_and_an_unknown_host(run_under):
    needs_namespaces()
    session = run_under(
        {"test_worlds.py": WORLDS},
        "-rA",
        namespace="--mount --uts",
        before="""
            hostname no-such-host.invalid
            mount -t tmpfs -o ro none /dev/shm
            mount --bind . .
            mount -t tmpfs none temporary
            mount -o remount,bind,ro .
            cd "$PWD"
            ! touch here 2>/dev/null
            ! touch /dev/shm/here 2>/dev/null
        """,
    )
    assert_as_ever(session)
    root = session.temporary.parent
    assert sorted(path.name for path in root.iterdir()) == [
        "pytest.ini",
        "temporary",
        "test_worlds.py",
    ]


FULL = """
    import os
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    FILLER = Path(os.environ["TMPDIR"]) / "filler"

    def fill():
        with FILLER.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    pass

    @pytest.mark.world_size(2)
    def test_passes(process_group):
        dist.barrier()

    def test_fills():
        fill()

    @pytest.mark.world_size(2)
    def test_in_a_full_one(process_group, world):
        dist.barrier()
        print("x" * 100_000)

    @pytest.mark.world_size(2)
    def test_that_hangs_in_a_full_one(process_group, world):
        if world.rank == 0:
            dist.barrier()

    def test_frees():
        FILLER.unlink()

    @pytest.mark.world_size(2)
    def test_fills_while_it_runs(process_group, world):
        dist.barrier()
        if world.rank == 0:
            fill()
        dist.barrier()
        dist.barrier()

    def test_frees_again():
        FILLER.unlink()

    @pytest.mark.world_size(2)
    def test_the_next_passes(process_group):
        dist.barrier()
"""


def test_a_full_temporary_file_system(run_under):
    needs_namespaces()
    session = run_under(
        {"test_full.py": FULL},
        "-rA",
        "--shardcheck-timeout=5",
        namespace="--mount",
        before='mount -t tmpfs -o size=2m none "$TMPDIR"',
    )
    results = session.results
    for name in ("passes", "fills_while_it_runs", "the_next_passes"):
        assert results[f"test_{name}[world2]"] == ["PASSED"], session.out[-3000:]
    for name in ("in_a_full_one", "that_hangs_in_a_full_one"):
        (word,) = set(results[f"test_{name}[world2]"])
        assert word in ("FAILED", "ERROR")
        failure = session.out.partition(f" test_{name}[world2] ____")[2].partition("\n____")[0]
        assert "No space left on device" in failure
    assert "INTERNALERROR" not in session.out
    assert session.processes_left() == []


def test_a_path_with_spaces_and_letters_of_all_kinds(run_under):
    # And an interpreter that drops docstrings and plain assert statements.
    folder = "ein Ordner/größe 日本 'x' \"y\" $HOME; %d {0}"
    session = run_under(
        {f"{folder}/test_worlds.py": WORLDS, f"{folder}/conftest.py": "import os\n"},
        *("-rA", "-p", "no:cacheprovider", "-p", "no:benchmark"),
        before=f"""
            cd {shlex.quote(folder)}
            mkdir 'tmp dir ü'
            export TMPDIR="$PWD/tmp dir ü" PYTHONOPTIMIZE=2
        """,
    )
    assert_as_ever(session)
    here = session.temporary.parent / folder
    left = {path.name for path in here.iterdir()} - {"__pycache__"}
    assert left == {"conftest.py", "test_worlds.py", "tmp dir ü"}
    assert not list(here.glob("tmp dir ü/shardcheck-*"))


STRICT = """
    [pytest]
    addopts = --strict-markers --strict-config
    filterwarnings = error
    xfail_strict = true
"""


def test_every_warning_an_error_and_all_strict(run_under):
    session = run_under(
        {"test_worlds.py": WORLDS, "strict/pytest.ini": STRICT},
        "-rA", "-c", "strict/pytest.ini", "--rootdir=.", "-W", "error", "-p", "no:asyncio",
        before="export PYTHONOPTIMIZE= PYTHONWARNINGS=error PYTHONDEVMODE=1",
    )  # fmt: skip
    assert_as_ever(session)
    assert "Warning" not in session.out


CONFTEST = """
    import os, sys, threading, time
    import torch

    print("printed at import")
    print("and there", file=sys.stderr)
    os.write(1, b"to the descriptor\\n")
    torch.set_num_threads(2)
    a = torch.ones(1500, 1500, requires_grad=True)
    (a @ a).sum().backward()
    os.chdir("/")

    if os.fork() == 0:
        # It outlives the session, as a server that somebody starts does.
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        with open(os.environ["TMPDIR"] + "/forked", "a") as file:
            print(os.getpid(), file=file)
        time.sleep(100)
        os._exit(0)
"""
IN_HOSTILE = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world_size(2)
    def test_computes(process_group):
        a = torch.ones(1500, 1500, requires_grad=True)
        (a @ a).sum().backward()
        dist.barrier()
        assert torch.get_num_threads() == 2

    @pytest.mark.world_size(2)
    def test_fails(world):
        print(f"printed by {world.rank}")
        assert world.rank == 0

    def test_plain():
        assert "RANK" not in os.environ
"""
THREAD = """
    threading.Thread(target=threading.Event().wait, name="from-conftest", daemon=True).start()
"""


@pytest.mark.parametrize("with_thread", [False, True], ids=["fork", "thread"])
def test_a_conftest_that_does_too_much(run_session, with_thread):
    files = {
        "conftest.py": CONFTEST + (THREAD if with_thread else ""),
        "test_it.py": IN_HOSTILE,
        "pytest.ini": "[pytest]\nshardcheck_threads = 2\n",
    }
    process, session = run_session.start(files, "-rA", "--shardcheck-timeout=20")
    try:
        process.wait(timeout=60)
        forked = [int(line) for line in (session.temporary / "forked").read_text().split()]
        for pid in forked:
            os.kill(pid, signal.SIGKILL)  # still there: the user's own process is not ours to end
        session.out, _ = process.communicate(timeout=5)  # and pytest's copy of its output with it
        assert session.results == {
            "test_computes[world2]": ["PASSED"],
            "test_fails[world2]": ["FAILED"],
            "test_plain": ["PASSED"],
        }, session.out[-3000:]
        failure = session.failure("test_fails[world2]")
        assert "rank 1 of 2 failed in its call" in failure
        assert "printed by 1" in failure
        # What the conftest prints is neither a rank's output nor the session's, once more.
        assert "printed at import" not in failure
        assert session.out.count("printed at import") <= 1
        assert ("from-conftest" in session.out) is with_thread
    finally:
        process.kill()
    assert session.processes_left() == []
    assert session.files_left() == []


MANY = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world_size(4, 64)
    def test_many(process_group, world):
        value = torch.tensor([world.rank])
        dist.all_reduce(value)
        assert value.item() == sum(range(world.size))

    @pytest.mark.world_size(64)
    def test_one_of_many_fails(process_group, world):
        assert world.rank != 63

    @pytest.mark.world_size(2)
    def test_the_next_passes(process_group):
        dist.barrier()
"""


def test_few_descriptors(run_under):
    session = run_under(
        {"test_many.py": MANY},
        "-rA",
        "-k",
        "not fails",
        before="ulimit -n 256; export PYTHONOPTIMIZE=1",
    )
    results = session.results
    assert results["test_many[world4]"] == ["PASSED"]
    assert results["test_the_next_passes[world2]"] == ["PASSED"], session.out[-3000:]
    if set(results["test_many[world64]"]) != {"PASSED"}:
        # 64 ranks need more of them: say so, and what to do.
        failure = session.failure("test_many[world64]")
        assert "ulimit -n" in failure, failure[-2000:]
        assert "world_size" not in failure.splitlines()[0]
    assert session.processes_left() == []
    assert session.files_left() == []


def test_sixty_four_ranks(run_session):
    # On two cores, with the limits as we ship them.
    session = run_session({"test_many.py": MANY}, "-rA", "-k", "world64 or next")
    assert session.results == {
        "test_many[world64]": ["PASSED"],
        "test_one_of_many_fails[world64]": ["FAILED"],
        "test_the_next_passes[world2]": ["PASSED"],
    }, session.out[-3000:]
    failure = session.failure("test_one_of_many_fails[world64]")
    assert "rank 63 of 64 failed in its call" in failure
    assert session.processes_left() == []
    assert session.files_left() == []


def test_three_sessions_at_once(run_under, tmp_path):
    # In one folder, with one cache and one folder for temporary files.
    shared = tmp_path / "shared"
    (shared / "temporary").mkdir(parents=True)
    (shared / "pytest.ini").write_text("[pytest]\n")
    worlds = "import pytest\n" + "\n".join(
        line[4:] for line in WORLDS.splitlines() if "import pytest" not in line
    )
    (shared / "test_worlds.py").write_text(worlds)
    before = f"cd {shlex.quote(str(shared))}; export TMPDIR=$PWD/temporary"
    started = [run_under.start({}, "-rA", before=before) for _ in range(3)]
    try:
        for process, session in started:
            session.out, _ = process.communicate(timeout=100)
    finally:
        for process, _ in started:
            process.kill()
    for _, session in started:
        assert_as_ever(session)
    assert not list(Path(shared / "temporary").glob("shardcheck-*"))


def test_a_death_that_a_busy_nursery_tells_of_too_late(run_session):
    """The peer fails, its grace ends, and only then is it known that the other was not stopped."""
    source = """
        import os, signal, subprocess, time
        import pytest
        import torch.distributed as dist

        @pytest.mark.world_size(2)
        @pytest.mark.parametrize("death", ["SIGKILL", "SIGSEGV"])
        def test_dies(process_group, world, death):
            dist.barrier()
            if world.rank == 0:
                nursery = os.getppid()
                os.kill(nursery, signal.SIGSTOP)
                # Longer than a rank has after its peer has failed.
                subprocess.Popen(
                    ["sh", "-c", f"sleep 6; kill -CONT {nursery}"], start_new_session=True
                )
                time.sleep(0.2)
                os.kill(os.getpid(), getattr(signal, death))
            dist.barrier()

        @pytest.mark.world_size(2)
        def test_next(process_group):
            dist.barrier()
    """
    session = run_session({"test_late.py": source}, "-rA")
    for death in ("SIGKILL", "SIGSEGV"):
        text = session.failure(f"test_dies[world2-{death}]")
        assert "rank 0 of 2 died in its call first" in text
        assert f"killed by {death}" in text
        assert "stopped by pytest-shardcheck" not in text
    assert session.results["test_next[world2]"] == ["PASSED"]


def test_a_session_that_hears_of_deaths_and_births_at_once(run_session):
    """On a busy machine a rank may have died before the session reads that it was born."""
    conftest = """
        import time
        import pytest_shardcheck.worlds.forked as forked

        def hear_late(*args, wait_readable=forked.wait_readable):
            time.sleep(0.7)
            wait_readable(*args)

        forked.wait_readable = hear_late
    """
    source = """
        import os, signal
        import pytest

        @pytest.mark.world_size(2, timeout=30)
        @pytest.mark.parametrize("death", ["SIGKILL", "SIGTERM"])
        def test_dies(world, death):
            if world.rank == 1:
                os.kill(os.getpid(), getattr(signal, death))

        @pytest.mark.world_size(2)
        def test_next(world):
            pass
    """
    session = run_session({"conftest.py": conftest, "test_late.py": source}, "-rA")
    for death in ("SIGKILL", "SIGTERM"):
        text = session.failure(f"test_dies[world2-{death}]")
        assert "rank 1 of 2 died in its call" in text
        assert f"killed by {death}" in text
    assert session.results["test_next[world2]"] == ["PASSED"]
