"""`shardcheck.snapshot` in whole sessions, with syrupy's options and under xdist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_shardcheck.plugin import snapshots
from pytest_shardcheck.plugin.snapshots import why_none

pytest.importorskip("syrupy")

OPTIONS = ("-p", "no:randomly", "-p", "no:cacheprovider")
LIFE = """
    import os
    import pytest
    import torch
    import torch.distributed as dist

    LATER = os.environ.get("LATER", "")
    pytestmark = pytest.mark.world_size(2)

    def test_reading(process_group, shardcheck):
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3 if LATER else 2)))
        with shardcheck.measure(model):
            model(torch.ones(2, 8)).sum().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        with shardcheck.measure(model) as reading:
            pass
        shardcheck.snapshot(reading)

    class TestClass:
        def test_ranks_differ(self, shardcheck, world):
            shardcheck.snapshot({"rank": world.rank, "noise": LATER}, exclude="noise")
            shardcheck.snapshot([1000 + bool(LATER)], name="near", tolerance="1%")

    @pytest.mark.parametrize("of", ["a/b", "ab"])
    def test_one(shardcheck, of):
        shardcheck.snapshot(of + LATER)

    def test_near(shardcheck):
        with shardcheck.measure(torch.nn.Linear(1000 + bool(LATER), 1)) as reading:
            pass
        shardcheck.snapshot(reading)

    def test_damaged(shardcheck):
        shardcheck.snapshot(LATER)

    @pytest.mark.skipif(bool(LATER), reason="later")
    def test_skip_mark(shardcheck):
        shardcheck.snapshot(LATER)

    def test_skips(shardcheck):
        if LATER:
            pytest.skip("later")
        shardcheck.snapshot(LATER)

    def test_raises_afterwards(shardcheck, world):
        shardcheck.snapshot(LATER)
        assert not LATER or world.rank == 0

    def test_dies(shardcheck, world):
        shardcheck.snapshot(LATER)
        if LATER and world.rank == 1:
            os._exit(3)

    @pytest.mark.world_size(2, timeout=2 if LATER else 60)
    def test_hangs(shardcheck, world):
        shardcheck.snapshot(LATER)
        while LATER and world.rank == 1:
            pass

    @pytest.fixture
    def torn_down():
        yield
        assert not LATER

    def test_teardown_fails(shardcheck, torn_down):
        shardcheck.snapshot(LATER)

    @pytest.mark.max_memory(params=1000 if not LATER else 1)
    def test_unmet(shardcheck):
        with shardcheck.measure(torch.nn.Linear(4, 4)):
            pass
        shardcheck.snapshot(LATER)

    def test_takes_none_later(shardcheck):
        if not LATER:
            shardcheck.snapshot(1)

    if not LATER:
        def test_gone(shardcheck):
            shardcheck.snapshot(1)
"""
# What a world that went wrong later must keep.
KEPT = (
    *("skip_mark", "skips", "raises_afterwards", "dies", "hangs", "teardown_fails", "unmet"),
)  # fmt: skip


class Project:
    """A folder in which one session runs after another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.directory = root / "snapshots"
        (root / "pytest.ini").write_text("[pytest]\n")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))

    def start(self, *args: str, **environment: str) -> subprocess.Popen:
        inherited = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith("PYTEST_") and k not in ("CI", "BUILD_NUMBER")
        }
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *OPTIONS, *args],
            cwd=self.root,
            env={**inherited, "COLUMNS": "120", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *args: str, **environment: str) -> tuple[int, str]:
        process = self.start(*args, **environment)
        try:
            out, _ = process.communicate(timeout=200)
        finally:
            process.kill()
        return process.returncode, out

    def files(self) -> dict[str, str]:
        return {
            path.relative_to(self.directory).as_posix(): path.read_text()
            for path in sorted(self.directory.rglob("*"))
            if path.is_file()
        }


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def counts(out: str) -> str:
    """Return the line of syrupy's report."""
    lines = out.splitlines()
    at = next((n for n, line in enumerate(lines) if "snapshot report summary" in line), None)
    assert at is not None, out
    return lines[at + 1]


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def file(test: str, of: str = "test_life") -> str:
    return f"tests/{of}/{test}@cpu.json"


def test_the_life_of_a_snapshot(project):
    project.write("tests/test_life.py", LIFE)
    status, out = project.run("--snapshot-update")
    assert (status, counts(out)) == (0, "15 snapshots generated."), out
    first = project.files()
    assert set(first) >= {
        file("test_reading[world2]"),
        file("TestClass.test_ranks_differ[world2]"),
        file("test_one[world2-a%2Fb]"),
        file("test_one[world2-ab]"),
    }
    assert len(first) == 15
    ranks = json.loads(first[file("TestClass.test_ranks_differ[world2]")])["snapshots"]
    assert ranks == {
        "near": {"ranks 0-1": [1000]},
        "value": {"rank 0": {"rank": 0}, "rank 1": {"rank": 1}},
    }
    step = json.loads(first[file("test_reading[world2]")])["snapshots"]
    assert step["step #1"]["ranks 0-1"]["memory"]["state"]["params"] == 576

    # Later everything is another. What is not as recorded, or not recorded, fails.
    (project.root / "snapshots" / file("test_one[world2-ab]")).unlink()
    project.write(f"snapshots/{file('test_damaged[world2]')}", "<<<<<<< HEAD\n")
    found = project.files()
    near = "--shardcheck-snapshot-tolerance=1%"
    status, out = project.run(near, "-rA", LATER="later")
    assert status == 1
    assert project.files() == found
    # What went wrong was not compared (the teardown comes later), and is not unused.
    assert counts(out) == "5 snapshots failed. 2 snapshots passed. 2 snapshots unused."
    assert "shardcheck.snapshot('step #1'): region 'step' #1 is not as recorded in" in out
    assert re.search(r"0-1 +memory\.state\.params +576 +864 +\+288 +\+50\.0 %", out), out
    assert "shardcheck.snapshot('value'): nothing is recorded in snapshots/tests/test_life" in out
    assert "python -m pytest 'tests/test_life.py::test_one[world2-ab]' --snapshot-update" in out
    assert "test_damaged[world2]@cpu.json: a snapshot of schema 1 was expected, it can't" in out
    for passed in ("TestClass::test_ranks_differ", "test_near", "test_takes_none_later"):
        assert f"PASSED tests/test_life.py::{passed}[world2]" in out

    # Updating takes over what ended well, deletes what is nobody's, and leaves the others alone.
    status, out = project.run(near, "--snapshot-update", LATER="later")
    assert counts(out) == (
        "2 snapshots passed. 1 snapshot generated. 3 snapshots updated. 2 unused snapshots deleted."
    )
    second = project.files()
    assert changed(first, second) == {
        file("test_reading[world2]"),
        file("test_one[world2-a%2Fb]"),
        file("test_one[world2-ab]"),
        file("test_damaged[world2]"),
        file("test_takes_none_later[world2]"),
        file("test_gone[world2]"),
    }
    assert len(second) == 13
    for name in KEPT:
        assert second[file(f"test_{name}[world2]")] == first[file(f"test_{name}[world2]")]


PARTS = """
    import os
    import pytest

    LATER = os.environ.get("LATER", "")

    @pytest.mark.world_size(1)
    @pytest.mark.parametrize("n", range(3))
    def test_one(shardcheck, n):
        shardcheck.snapshot([n, LATER])

    @pytest.mark.world_size(1)
    def test_two(shardcheck):
        shardcheck.snapshot(LATER)

    def test_stop():
        if LATER == "interrupt":
            raise KeyboardInterrupt

    @pytest.mark.world_size(1)
    def test_three(shardcheck):
        shardcheck.snapshot(LATER)
"""


def test_running_a_part_touches_that_part(project):
    project.write("tests/test_a.py", PARTS)
    project.write("tests/test_b.py", PARTS.replace("test_one", "test_four"))
    project.write(
        "snapshots/tests/test_deleted/test_x[world1]@cpu.json",
        '{"schema": 1, "torch": "2.13.0", "snapshots": {}}',
    )
    project.write("snapshots/tests/test_a/test_one[world1-0]@cuda.json", "{}")
    status, out = project.run("--snapshot-update")
    # What a test file left that is there no more is unused; another machine's snapshot is not.
    assert counts(out) == "10 snapshots generated. 1 unused snapshot deleted.", out
    assert status == 0
    assert len(project.files()) == 11
    # Nor is what somebody else keeps there.
    foreign = {"config.json": '{"layers": 2}', "models/notes.json": "[1]", "x@cpu.json": "{"}
    for name, text in foreign.items():
        project.write(f"snapshots/{name}", text)
    assert counts(project.run("--snapshot-update")[1]) == "10 snapshots passed."
    for name, text in foreign.items():
        assert (project.directory / name).read_text() == text
        (project.directory / name).unlink()

    def updated(*args, later):
        before = project.files()
        project.run("--snapshot-update", *args, LATER=later)
        return changed(before, project.files())

    assert updated("-k", "one and not 2", later="k") == {
        file("test_one[world1-0]", "test_a"),
        file("test_one[world1-1]", "test_a"),
    }
    node = "tests/test_b.py::test_four[world1-1]"
    assert updated(node, later="node") == {file("test_four[world1-1]", "test_b")}
    # What an interrupted session did not reach is not unused, and what it reached is whole.
    assert updated(later="interrupt") == {
        *(file(f"test_one[world1-{n}]", "test_a") for n in range(3)),
        file("test_two[world1]", "test_a"),
    }
    for text in project.files().values():
        json.loads(text)


MANY = """
    import os
    import pytest

    @pytest.mark.world_size(1)
    @pytest.mark.parametrize("n", range(int(os.environ["MANY"])))
    def test_many(shardcheck, n):
        shardcheck.snapshot({"n": n, "of": [n] * 20})

    if "ONE_LESS" not in os.environ:
        @pytest.mark.world_size(1)
        def test_last(shardcheck):
            shardcheck.snapshot(None)
"""
# `SNAPSHOTS=200 WORKERS=4` shows the same of more, and takes as much longer.
COUNT = int(os.environ.get("SNAPSHOTS", "20"))
WORKERS = os.environ.get("WORKERS", "2")


def test_workers_lose_none_and_only_the_controller_deletes(project):
    pytest.importorskip("xdist")
    import torch

    project.write("tests/test_many.py", MANY)
    ini = "shardcheck_snapshot_dir = kept/here\nshardcheck_snapshot_variant = torch{torch}\n"
    project.write("pytest.ini", f"[pytest]\n{ini}")
    project.directory = project.root / "kept/here"
    many = {"MANY": str(COUNT)}
    status, out = project.run("-n", "2", "--snapshot-update", **many)
    assert (status, counts(out)) == (0, f"{COUNT + 1} snapshots generated."), out
    first = project.files()
    assert len(first) == COUNT + 1
    # All of them are found again, and the one that has no test any more is deleted.
    status, out = project.run("-n", WORKERS, "--snapshot-update", ONE_LESS="1", **many)
    assert counts(out) == f"{COUNT} snapshots passed. 1 unused snapshot deleted.", out
    version = torch.__version__.partition("+")[0]
    assert changed(first, project.files()) == {
        f"tests/test_many/test_last[world1]@torch{version}.json"
    }
    # A test that is repeated has one snapshot.
    twice = ("--count", "2") if find_spec("pytest_repeat") else ()
    status, out = project.run(*twice, ONE_LESS="1", **many)
    assert (status, counts(out)) == (0, f"{COUNT} snapshots passed."), out


WRONG = """
    import pytest
    import torch

    pytestmark = pytest.mark.world_size(1)

    def test_tensor(shardcheck):
        shardcheck.snapshot(torch.ones(1))

    def test_field(shardcheck):
        with shardcheck.measure(torch.nn.Linear(2, 2)) as reading:
            pass
        shardcheck.snapshot(reading, only="peek")

    def test_twice(shardcheck):
        shardcheck.snapshot(1, name="it")
        shardcheck.snapshot(1, name="it")

    def test_open(shardcheck):
        with shardcheck.measure(torch.nn.Linear(2, 2)) as reading:
            shardcheck.snapshot(reading)

    @pytest.fixture
    def late(shardcheck):
        yield
        shardcheck.snapshot(1)

    def test_late(late):
        pass

    @pytest.fixture
    def snapshot(snapshot):
        return snapshot

    def test_behind_a_fixture(snapshot, world):
        assert 1 == snapshot

    def test_behind_a_request(request, world):
        assert 1 == request.getfixturevalue("snapshot")

    def test_directory(shardcheck):
        shardcheck.snapshot(1)
"""


def test_what_is_wrong_fails_and_writes_nothing(project):
    project.write("tests/test_wrong.py", WRONG)
    status, out = project.run("--snapshot-update", "--snapshot-dirname=snapshots")
    assert status == 1
    for said in (
        "a Tensor can't be kept",
        "there is no such field (did you mean 'peak'?)",
        "this test has taken a snapshot 'it'",
        "can't read region 'step': it is still open",
        "shardcheck.snapshot after the test body",
        "syrupy's --snapshot-dirname is 'snapshots', too",
    ):
        assert said in out, said
    assert out.count("UsageError: the fixture 'snapshot' in a world test: each rank would") >= 2
    assert "1 passed" in out  # test_late, but for its teardown
    assert project.files() == {}


class Manager:
    """A plugin manager where syrupy is not loaded, or was switched off."""

    def __init__(self, *, blocked: bool) -> None:
        self.blocked = blocked

    def hasplugin(self, name: str) -> bool:
        assert name == "syrupy"
        return False

    def is_blocked(self, name: str) -> bool:
        return self.blocked


def test_without_syrupy_the_call_says_what_to_do(monkeypatch):
    def config(*, blocked):
        return SimpleNamespace(pluginmanager=Manager(blocked=blocked))

    assert "add `-p syrupy`" in why_none(config(blocked=False))
    monkeypatch.setattr(snapshots, "find_spec", lambda _: None)
    assert "pip install 'pytest-shardcheck[snapshots]'" in why_none(config(blocked=False))
    assert "leave out `-p no:syrupy`" in why_none(config(blocked=True))
