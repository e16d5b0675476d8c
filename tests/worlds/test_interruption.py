"""A session that is interrupted or killed leaves no rank, no nursery and no worker behind."""

from __future__ import annotations

import signal
import time

import pytest

# Each rank tells where it is, starts a grandchild, and then spins in C or waits for its peer.
BUSY = """
    import subprocess, time
    from pathlib import Path
    import pytest
    import torch.distributed as dist

    HERE = Path(__file__).parent

    def arrive(world):
        subprocess.Popen(["sleep", "600"])
        (HERE / f"arrived-{world.rank}").touch()

    def busy(world):
        arrive(world)
        if world.rank == 0:
            sum(range(10**12))  # looks at no signal
        else:
            dist.barrier()      # sleeps in gloo

    @pytest.fixture
    def in_setup(process_group, world, request):
        if request.node.originalname == "test_setup":
            busy(world)
        yield
        if request.node.originalname == "test_teardown":
            busy(world)

    @pytest.mark.world_size(2)
    def test_setup(in_setup):
        pass

    @pytest.mark.world_size(2)
    def test_body(process_group, world):
        busy(world)

    @pytest.mark.world_size(2)
    def test_teardown(in_setup):
        pass
"""


def wait_for(condition, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


# The first process that imports it is the session's, the others' are its children's.
SLOW_IMPORT = """
    import time
    from pathlib import Path
    import pytest

    HERE = Path(__file__).parent
    among_children = (HERE / "imported").exists()
    (HERE / "imported").touch()
    if among_children == CHILDREN:
        (HERE / "importing").touch()
        time.sleep(600)

    @pytest.mark.world_size(2)
    def test_it(world):
        pass
"""

# A world whose ranks have begun, but not yet their test's setup.
SLOW_START = """
    import os, time
    from pathlib import Path
    import pytest

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(item):
        if rank := os.environ.get("RANK"):
            (Path(__file__).parent / f"arrived-{rank}").touch()
            sum(range(10**12)) if rank == "0" else time.sleep(600)
        return (yield)
"""


def pytest_could_not_report(out: str) -> bool:
    """Tell whether pytest's own report of the interrupt failed, which makes its exit code 1.

    CPython 3.11 gives no line to an interrupt that comes before a function's first, and pytest
    takes one from it (pytest-xdist's issue 1196 shows the same traceback): 1 in some 300 here.
    """
    return out.rstrip().endswith(
        "TypeError: unsupported operand type(s) for -: 'NoneType' and 'int'"
    ) and ("self._rawentry.tb_lineno - 1" in out)


def arrived(session) -> bool:
    return all((session.temporary.parent / f"arrived-{rank}").exists() for rank in (0, 1))


PHASES = {
    "collecting": (
        {"test_busy.py": SLOW_IMPORT.replace("CHILDREN", "False")},
        [],
        lambda session: (session.temporary.parent / "importing").exists(),
    ),
    "nursery starting": (
        {"test_busy.py": BUSY},
        [],
        lambda session: list(session.temporary.glob("shardcheck-*/log")),
    ),
    "nursery collecting": (
        {"test_busy.py": SLOW_IMPORT.replace("CHILDREN", "True")},
        [],
        lambda session: (session.temporary.parent / "importing").exists(),
    ),
    "spawned ranks starting": (
        {"test_busy.py": SLOW_IMPORT.replace("CHILDREN", "True")},
        ["--shardcheck-start=spawn"],
        lambda session: (session.temporary.parent / "importing").exists(),
    ),
    "world starting": ({"conftest.py": SLOW_START, "test_busy.py": BUSY}, [], arrived),
    "setup": ({"test_busy.py": BUSY}, ["-k", "setup"], arrived),
    "body": ({"test_busy.py": BUSY}, ["-k", "body"], arrived),
    "spawned body": (
        {"test_busy.py": BUSY},
        ["-k", "body", "--shardcheck-start=spawn"],
        arrived,
    ),
    "teardown": ({"test_busy.py": BUSY}, ["-k", "teardown"], arrived),
    "body under xdist": ({"test_busy.py": BUSY}, ["-k", "body", "-n", "2"], arrived),
}


@pytest.mark.parametrize("how", ["kill -9", "ctrl-c"])
@pytest.mark.parametrize("phase", PHASES)
def test_nothing_is_left(run_session, phase, how):
    files, args, reached = PHASES[phase]
    if "xdist" in phase:
        pytest.importorskip("xdist")
    process, session = run_session.start(files, *args)
    wait_for(lambda: reached(session))
    if how == "kill -9":
        process.kill()
    else:
        process.send_signal(signal.SIGINT)
    # Returns at once only when no process of the session has inherited its output.
    out, _ = process.communicate(timeout=60)
    assert session.processes_left() == []
    assert session.files_left() == []
    if how == "ctrl-c":
        assert "KeyboardInterrupt" in out
        if not pytest_could_not_report(out):
            # CPython itself ends by SIGINT, whatever pytest returns, where the interrupt fell into
            # an exec() of text: the making of a dataclass, while the session imports a module.
            codes = {pytest.ExitCode.INTERRUPTED, -signal.SIGINT}
            assert process.returncode in codes, out
