"""The fixture ``benchmark`` in real worlds: who decides, who waits, what fails, what is kept."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("pytest_benchmark")

KIT = """
    import time
    import pytest
    import torch
    import torch.distributed as dist
    from pytest_shardcheck.instruments import c10d_tap

    TWO = pytest.mark.world_size(2)

    def everyones(value):
        values = [None] * dist.get_world_size()
        dist.all_gather_object(values, value)
        return values

    def same(value):
        first, *others = everyones(value)
        return all(other == first for other in others)

    def work(times):
        x = torch.ones(64, 64)
        for _ in range(times):
            x = x @ x / 64

    class Clock:
        # Every look at it takes its rank's own time; a round is two looks.
        def __init__(self):
            self.now = 0.0
            self.step = 1.0

        def __call__(self):
            self.now += self.step
            return self.now

    CLOCK = Clock()
"""

WORKS = """
    from kit import *

    @TWO
    def test_each_rank_has_its_own_result(benchmark, world):
        assert benchmark(lambda: world.rank) == world.rank

    @TWO
    @pytest.mark.benchmark(group="steps")
    def test_unequal_ranks_make_the_same_calls(benchmark, process_group, world):
        calls = []

        def step():
            calls.append(1)
            work(40 if world.rank else 1)
            dist.all_reduce(torch.ones(8))

        benchmark(step)
        assert len(calls) > 5
        assert same(len(calls))
        assert same([benchmark.stats.iterations, benchmark.stats.stats.data])
        assert benchmark.stats["mean"] > 0

    @TWO
    def test_short_functions_are_called_many_times_a_round(benchmark, process_group):
        calls = []
        benchmark(calls.append, 1)
        assert benchmark.stats.iterations > 1
        assert len(calls) > benchmark.stats.iterations * benchmark.stats.stats.rounds
        assert same([len(calls), benchmark.stats.iterations, benchmark.stats.stats.data])

    @TWO
    @pytest.mark.benchmark(timer=CLOCK, calibration_precision=1)
    def test_a_round_lasts_as_long_as_on_the_slowest_rank(benchmark, world):
        CLOCK.step = 1.0 + 2 * world.rank
        benchmark(lambda: None)
        assert set(benchmark.stats.stats.data) == {3.0}

    @TWO
    @pytest.mark.benchmark(timer=CLOCK)
    def test_each_round_has_its_own_slowest_rank(benchmark, world):
        rounds = iter(range(8))

        def setup():
            CLOCK.step = 1.0 + (next(rounds) + world.rank) % 2 * (1 + world.rank)

        benchmark.pedantic(lambda: None, setup=setup, rounds=4)
        assert benchmark.stats.stats.data == [3.0, 2.0, 3.0, 2.0]

    @TWO
    def test_pedantic(benchmark, process_group, world):
        calls = []

        def setup():
            calls.append("setup")
            return (world.rank,), {"other": 2}

        def target(rank, other):
            calls.append("target")
            return rank + other

        target.function = len  # an attribute of that name means nothing
        result = benchmark.pedantic(target, setup=setup, rounds=3, warmup_rounds=2)
        assert result == world.rank + 2
        assert calls == ["setup", "target"] * 5
        assert len(benchmark.stats.stats.data) == 3
        assert same(benchmark.stats.stats.data)

    @TWO
    def test_pedantic_with_iterations(benchmark, process_group):
        calls = []
        benchmark.pedantic(calls.append, args=(1,), rounds=3, iterations=4, warmup_rounds=1)
        assert len(calls) == 4 * (3 + 1) + 1, "and once more for its result"
        assert benchmark.stats.iterations == 4

    @TWO
    def test_as_a_decorator(benchmark, process_group):
        calls = []

        @benchmark
        def result():
            calls.append(1)
            return len(calls)

        assert result == len(calls)
        assert same(len(calls))

    @TWO
    @pytest.mark.benchmark(warmup=True, warmup_iterations=7)
    def test_warm_up_is_decided_by_one_rank(benchmark, process_group, world):
        calls = []

        def step():
            calls.append(1)
            work(20 * world.rank)

        benchmark(step)
        assert same(len(calls))

    @TWO
    @pytest.mark.benchmark(precision=0.9, confidence=0.5, min_rounds=3)
    def test_rounds_until_precise_are_decided_by_one_rank(benchmark, process_group, world):
        calls = []

        def step():
            calls.append(1)
            work(20 * world.rank)

        benchmark(step)
        assert same(len(calls))

    @TWO
    def test_no_collective_is_issued(benchmark, process_group):
        class Calls(list):
            def issued(self, call):
                self.append(call.operator)

            def returned(self, token, result):
                pass

            failed = returned

        calls = Calls()
        c10d_tap.listen(calls)
        benchmark(work, 1)
        assert calls == []
        dist.all_reduce(torch.ones(1))
        assert calls == ["allreduce_"], "the tap counts, so that the zero above means something"

    @TWO
    def test_it_needs_no_process_group(benchmark):
        benchmark(work, 1)
        assert not dist.is_initialized()

    @TWO
    def test_all_ranks_may_expect_an_exception(benchmark, process_group):
        with pytest.raises(ValueError, match="boom"):
            benchmark(int, "boom")
        assert same("went on")

    @pytest.fixture
    def timed(benchmark):
        return benchmark(len, "text")

    @TWO
    def test_through_a_fixture(timed):
        assert timed == 4

    class TestOverridden:
        @pytest.fixture
        def benchmark(self, benchmark):
            benchmark.extra_info["overridden"] = True
            return benchmark

        @TWO
        def test_by_a_users_fixture(self, benchmark):
            assert benchmark(len, "text") == 4

    @pytest.mark.world_size(1)
    def test_a_world_of_one(benchmark):
        assert benchmark(len, "text") == 4

    @pytest.mark.world_size(5)
    def test_more_ranks_than_cores(benchmark, process_group, world):
        calls = []

        def step():
            calls.append(1)
            work(world.rank)
            dist.all_reduce(torch.ones(8))

        benchmark(step)
        assert same(len(calls))

    @TWO
    def test_extra_info_of_ranks(benchmark, world):
        benchmark.extra_info["batch"] = 32
        benchmark(len, "text")
        benchmark.extra_info["local"] = world.rank + 0.5
        benchmark.extra_info["object"] = {1, }
        benchmark.extra_info[3] = {(1, 2): 4}

    @TWO
    def test_two_worlds_of_one_name(benchmark):
        benchmark(len, "text")
"""

MEASURED = """
    from kit import *
    from pytest_shardcheck import UsageError

    def training(process_group):
        model = torch.nn.Linear(64, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step():
            loss = model(torch.ones(8, 64)).sum()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
            seen.add((torch._C._len_torch_dispatch_stack(), len(c10d_tap._listeners)))

        seen = set()
        return model, optimizer, step, seen

    @TWO
    def test_bare(benchmark, process_group):
        model, optimizer, step, seen = training(process_group)
        benchmark(step)
        assert seen == {(0, 1)}, "no mode, and of listeners only what hangs are explained with"

    @TWO
    @pytest.mark.max_memory(peak="1 MB")
    @pytest.mark.collectives(all_reduce=2)
    def test_measured_before(benchmark, process_group, shardcheck):
        model, optimizer, step, seen = training(process_group)
        step()
        with shardcheck.measure(model, optimizer):
            step()
        seen.clear()
        benchmark(step)
        assert seen == {(0, 1)}
        with pytest.raises(UsageError, match="Measure first, then benchmark"):
            with shardcheck.measure(model):
                pass
        shardcheck.watch(optimizer)

    @TWO
    def test_inside_a_region(benchmark, process_group, shardcheck):
        model, optimizer, step, seen = training(process_group)
        step()
        with shardcheck.measure(model, optimizer, region="timed") as reading:
            benchmark.pedantic(step, rounds=3)
        assert reading.collectives["all_reduce"].count == 6
        assert (0, 1) not in seen
        with shardcheck.measure(model, region="after"):
            pass

    @TWO
    @pytest.mark.max_memory(peak="1 MB")
    def test_inside_the_body(benchmark, process_group):
        model, optimizer, step, seen = training(process_group)
        benchmark.pedantic(step, rounds=3)
        assert (0, 1) not in seen

    @TWO
    def test_one_rank_is_inside_a_region(benchmark, process_group, shardcheck, world):
        model, optimizer, step, seen = training(process_group)
        with shardcheck.measure(model, optimizer):
            step()
        if world.rank == 1:
            shardcheck.start(model, region="of rank 1")
        benchmark.pedantic(step, rounds=2)
        assert (0, 1) not in seen, "all ranks run under instruments, or none"

    @TWO
    def test_inside_a_mode_of_the_tests_own(benchmark, process_group, shardcheck):
        from torch.utils.flop_counter import FlopCounterMode

        model, optimizer, step, seen = training(process_group)
        with shardcheck.measure(model, optimizer):
            step()
        seen.clear()
        with FlopCounterMode(display=False):
            benchmark.pedantic(step, rounds=2)
        assert seen == {(2, 2)}
"""

FAILS = """
    import os
    import signal
    from kit import *

    @TWO
    def test_one_rank_raises(benchmark, world):
        calls = []

        def step():
            calls.append(1)
            if world.rank == 1 and len(calls) == 4:
                raise ValueError("boom")

        benchmark.pedantic(step, rounds=8)

    @TWO
    def test_the_deciding_rank_raises(benchmark, world):
        @benchmark
        def step():
            if world.rank == 0:
                raise ValueError("boom")

    @TWO
    def test_one_rank_never_calls_it(benchmark, world):
        if world.rank == 0:
            benchmark(len, "text")

    @TWO
    def test_the_deciding_rank_never_calls_it(benchmark, world):
        if world.rank == 1:
            benchmark(len, "text")

    @TWO
    def test_one_rank_calls_it_twice(benchmark, world):
        for _ in range(1 + world.rank):
            benchmark(len, "text")

    @TWO
    def test_one_rank_leaves_it(benchmark, world):
        def step():
            if world.rank == 1:
                raise ValueError("boom")

        try:
            benchmark(step)
        except ValueError:
            pass

    @TWO
    def test_in_different_ways(benchmark, world):
        if world.rank == 0:
            benchmark(len, "text")
        else:
            benchmark.pedantic(len, args=("text",), rounds=3)

    @TWO
    def test_other_rounds(benchmark, world):
        benchmark.pedantic(len, args=("text",), rounds=3 + world.rank)

    @TWO
    def test_one_gathers(benchmark, world, shardcheck):
        with shardcheck.measure() as reading:
            pass
        if world.rank == 0:
            shardcheck.gather(reading)
        else:
            benchmark(len, "text")

    @TWO
    def test_one_rank_dies(benchmark, world):
        calls = []

        def step():
            calls.append(1)
            if world.rank == 1 and len(calls) == 4:
                os.kill(os.getpid(), signal.SIGKILL)

        benchmark.pedantic(step, rounds=8)

    @TWO
    def test_weaves(benchmark):
        benchmark.weave(len)

    @TWO
    def test_patches(benchmark_weave):
        benchmark_weave(len)

    @TWO
    def test_fails_afterwards(benchmark, world):
        benchmark(len, "text")
        assert world.rank == 0

    @pytest.mark.world_size(2, timeout=2)
    def test_a_peer_waits_in_a_barrier(benchmark, process_group, world):
        if world.rank == 1:
            dist.barrier()
        benchmark(len, "text")
"""

FILES = {
    "kit.py": KIT,
    "test_works.py": WORKS,
    "test_measured.py": MEASURED,
    "test_fails.py": FAILS,
}
NAMES = {
    file: re.findall(r"^    (?:    )?def (test_\w+)\(", text, re.MULTILINE)
    for file, text in FILES.items()
}


@pytest.fixture(scope="module")
def session(run_session):
    return run_session(
        FILES,
        "-rA",
        "--benchmark-max-time=0.01",
        "--benchmark-json=times.json",
        "--benchmark-columns=min,rounds",
    )


@pytest.fixture(scope="module")
def results(session):
    written = json.loads((session.temporary.parent / "times.json").read_text())
    return {result["name"].partition("[")[0]: result for result in written["benchmarks"]}


def test_every_test_came_out_as_it_should(session):
    words = {
        name.partition("[")[0].rpartition(".")[2]: its for name, its in session.results.items()
    }
    failed = [name for name, its in words.items() if its != ["PASSED"]]
    assert failed == NAMES["test_fails.py"]
    assert len(words) == sum(map(len, NAMES.values()))


def test_each_world_is_one_row(session, results):
    passed = set(NAMES["test_works.py"] + NAMES["test_measured.py"])
    passed -= {"test_all_ranks_may_expect_an_exception"}
    timed = {"test_fails_afterwards", "test_one_rank_calls_it_twice"}
    assert set(results) == passed | timed, "those that failed later too, as without us"
    table = session.out.partition("- benchmark")[2]
    for name in results:
        assert len(re.findall(rf"^{name}\[", table, re.MULTILINE)) == 1, name
    assert "'steps': 1 tests" in table


def test_a_row_has_what_pytest_benchmark_writes(results):
    result = results["test_a_round_lasts_as_long_as_on_the_slowest_rank"]
    assert result["fullname"] == f"test_works.py::{result['name']}"
    assert (result["param"], result["params"]) == ("world2", {"world": "world2"})
    assert result["stats"] | {"min": 3.0, "max": 3.0, "mean": 3.0, "rounds": 5} == result["stats"]
    assert result["options"]["timer"].endswith("Clock") or result["options"]["timer"]
    assert results["test_unequal_ranks_make_the_same_calls"]["group"] == "steps"
    assert results["test_pedantic"]["stats"]["rounds"] == 3
    assert results["test_pedantic_with_iterations"]["stats"]["iterations"] == 4
    assert results["test_a_world_of_one"]["params"] == {"world": "world1"}


def test_extra_info(results):
    world = {"world_size": 2, "backend": "gloo"}
    assert results["test_through_a_fixture"]["extra_info"] == world
    assert results["test_more_ranks_than_cores"]["extra_info"]["world_size"] == 5
    assert results["test_by_a_users_fixture"]["extra_info"] == world | {"overridden": True}
    assert results["test_extra_info_of_ranks"]["extra_info"] == world | {
        "batch": 32,
        "local (rank 0)": 0.5,
        "local (rank 1)": 1.5,
        "object": "{1}",
        "3": "{(1, 2): 4}",
    }


def test_extra_info_of_what_was_measured(results):
    parameters = 4 * (64 * 64 + 64)
    assert results["test_bare"]["extra_info"] == {"world_size": 2, "backend": "gloo"}
    info = results["test_measured_before"]["extra_info"]
    assert info.pop("peak") >= 3 * parameters
    assert info == {
        "world_size": 2,
        "backend": "gloo",
        "state": 3 * parameters,
        "collectives": {"all_reduce": 2},
        "wire_bytes": parameters,
    }
    info = results["test_inside_a_region"]["extra_info"]
    assert info["timed_inside"] == ["timed"]
    assert info["state (timed)"] == 3 * parameters
    assert info["collectives (after)"] == {}
    assert not [name for name in info if name in ("collectives (timed)", "wire_bytes (timed)")]
    info = results["test_one_rank_is_inside_a_region"]["extra_info"]
    assert info["timed_inside"] == ["of rank 1"]
    assert info["collectives (step)"] == {"all_reduce": 2}
    assert "collectives (of rank 1)" not in info
    info = results["test_inside_the_body"]["extra_info"]
    assert info.keys() == {"world_size", "backend", "timed_inside", "peak"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_one_rank_raises", ["rank 1 of 2 failed in its call", "ValueError: boom"]),
        ("test_the_deciding_rank_raises", ["rank 0 of 2 failed in its call", "ValueError: boom"]),
        (
            "test_one_rank_never_calls_it",
            ["rank 1 never called the benchmark(...) that others wait in"],
        ),
        (
            "test_the_deciding_rank_never_calls_it",
            ["rank 0 never called the benchmark(...) that others wait in"],
        ),
        ("test_one_rank_calls_it_twice", ["rank 1 of 2 failed", "Fixture can only be used once"]),
        (
            "test_one_rank_leaves_it",
            ["rank 1 never ended the round of the benchmark(...) that others wait in"],
        ),
        (
            "test_in_different_ways",
            [
                "the ranks wait for each other in different places:",
                "rank 0 called the benchmark(...); rank 1 called the benchmark.pedantic(...)",
            ],
        ),
        (
            "test_other_rounds",
            [
                "ranks 0-1 of 2 failed in their call",
                "benchmark.pedantic(rounds=...) differs between ranks: 3 on rank 0, 4 on rank 1",
            ],
        ),
        (
            "test_one_gathers",
            ["rank 0 called the shardcheck.gather(); rank 1 called the benchmark(...)"],
        ),
        ("test_one_rank_dies", ["rank 1 of 2 died in its call", "killed by SIGKILL"]),
        ("test_weaves", ["benchmark.weave() in a world test", "Call benchmark(function, ...)"]),
        ("test_patches", ["benchmark.weave() in a world test"]),
        ("test_fails_afterwards", ["assert 1 == 0"]),
        (
            "test_a_peer_waits_in_a_barrier",
            ["rank 0 waited where it called the benchmark(...)", "rank 1 waits in barrier #1"],
        ),
    ],
)
def test_a_failure_says_who_did_what(session, name, expected):
    text = session.failure(f"{name}[world2]")
    assert [part for part in expected if part not in text] == []
    if "barrier" not in name:
        assert "still running after" not in text, "it ends long before its timeout"
        assert "pytest_shardcheck/" not in text, "our own frames are hidden"


def test_nothing_is_left(session):
    assert session.processes_left() == []
    assert session.files_left() == []
