"""What a world costs under us and under torch's own ways, as ratios of one run.

Run ``pytest tests/benchmarks`` on a machine that does nothing else. No time is asserted: the table
at the end compares. Every figure is the smallest of its rounds, since other load only adds.

Torch's ways run as a pytest user has them: the session has imported torch, which is not charged to
them, and each test starts its ranks and waits for their end.

Ours per test is the whole wall time that one more test adds to a session of its own: a session of
1 + 40 tests and one of 1 test, process start to process end, their difference divided by 40. What
a session pays once (collection, the nursery's start) is in both, and so not in this figure. It is
in the hundred two-rank tests: a session of them against a session of five spawned tests, both timed
from process start to process end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unittest
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest

WAYS = Path(__file__).with_name("ways")
MORE = 40  # tests

SPAWN = "torch.multiprocessing.spawn"

# What torch warns of in its own ways is not ours to fix.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1200)]


@pytest.fixture(params=[2, 4], ids=["world2", "world4"])
def size(request):
    return request.param


@pytest.fixture(autouse=True)
def surroundings(monkeypatch):
    """Let every process import the ways, from compiled files, and spare gloo a look-up by name."""
    monkeypatch.syspath_prepend(WAYS)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")


def test_ours(benchmark, figures, size, tmp_path):
    more, one = (partial(our_session, tmp_path, size, tests) for tests in (1 + MORE, 1))
    more_s, one_s = time_pairs(benchmark, more, one, rounds=3)
    figures.per_test_s["pytest-shardcheck", size] = (min(more_s) - min(one_s)) / MORE


def test_spawn(benchmark, figures, size, tmp_path):
    benchmark.pedantic(spawn, [tmp_path, size], rounds=3, warmup_rounds=1)
    figures.per_test_s[SPAWN, size] = benchmark.stats.stats.min


def test_multi_process_test_case(benchmark, figures, size):
    import multi_process

    case = {2: multi_process.Sum2, 4: multi_process.Sum4}[size]

    def run():
        result = unittest.TestResult()
        case("test_sum").run(result)
        assert result.testsRun == 1
        assert result.wasSuccessful(), result.errors + result.failures

    benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    figures.per_test_s["MultiProcessTestCase", size] = benchmark.stats.stats.min


def test_torchrun(benchmark, figures, size, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*launcher, "--nproc-per-node", str(size), str(WAYS / "sum_of_ranks.py")]
    benchmark.pedantic(run_process, [command, tmp_path], rounds=3, warmup_rounds=1)
    figures.per_test_s["torchrun", size] = benchmark.stats.stats.min


def test_a_hundred_of_ours_against_five_spawned(benchmark, figures, tmp_path):
    five_spawned = partial(session, tmp_path, "spawned.py")
    hundred = partial(our_session, tmp_path, 2, 100)
    ours_s, spawned_s = (min(times) for times in time_pairs(benchmark, hundred, five_spawned, 2))
    figures.lines.append(
        f"a session of 100 two-rank tests of ours, start-up included: {ours_s:.2f} s, "
        f"{ours_s / spawned_s:.2f} of a session of five spawned ones ({spawned_s:.2f} s)"
    )


def test_a_session_without_worlds(benchmark, figures, tmp_path):
    loaded = partial(session, tmp_path, "plain.py")
    without = partial(session, tmp_path, "plain.py", "-p", "no:shardcheck")
    times = time_pairs(benchmark, loaded, without, rounds=40)
    with_s, without_s = (min(each) for each in times)
    figures.lines.append(
        f"a session without world tests: {with_s / without_s:.3f} of one with -p no:shardcheck "
        f"({1000 * (with_s - without_s):+.1f} ms of {1000 * without_s:.0f} ms)"
    )


def time_pairs(benchmark, target, other, rounds):
    """Time two functions in turns, after one of each that does not count; return both's seconds."""
    target()
    others_s = []

    def time_other():
        began = time.perf_counter()
        other()
        others_s.append(time.perf_counter() - began)

    time_other()
    others_s.clear()
    benchmark.pedantic(target, setup=time_other, rounds=rounds)
    return list(benchmark.stats.stats.data), others_s


def spawn(tmp_path, size):
    import sum_of_ranks
    import torch.multiprocessing

    rendezvous = tmp_path / "rendezvous"
    rendezvous.unlink(missing_ok=True)
    torch.multiprocessing.spawn(sum_of_ranks.run_spawned, (size, rendezvous.as_uri()), nprocs=size)


def our_session(tmp_path, size, tests):
    counts = {"SHARDCHECK_BENCH_SIZE": str(size), "SHARDCHECK_BENCH_TESTS": str(tests)}
    output = session(tmp_path, "ours.py", **counts)
    assert f"{tests} passed" in output


def session(tmp_path, file, *options, **variables):
    """Run a whole pytest session of the plugin and no other one; return its output."""
    entry_points = metadata.entry_points(group="pytest11")
    others = sorted({f"-pno:{point.name}" for point in entry_points} - {"-pno:shardcheck"})
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(WAYS)]
    command += [*others, "-pno:cacheprovider", *options, str(WAYS / file)]
    return run_process(command, tmp_path, **variables)


def run_process(command, directory, **variables):
    process = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout
    return process.stdout
