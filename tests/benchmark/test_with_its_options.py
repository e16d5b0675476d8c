"""pytest-benchmark's own options over worlds, its ``compare``, and a step of unequal ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("pytest_benchmark")

STEP = """
    import pytest
    import torch
    from torch.distributed.fsdp import fully_shard

    @pytest.mark.world_size(2)
    @pytest.mark.parametrize("reshard", [True, False])
    def test_step(device_mesh, shardcheck, world, benchmark, reshard):
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
        for layer in [*model, model]:
            fully_shard(layer, mesh=device_mesh, reshard_after_forward=reshard)
        optimizer = torch.optim.AdamW(model.parameters())
        calls = []

        def step():
            calls.append(1)
            model(torch.randn(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if world.rank == len(calls) % 2:  # now the one, now the other is late
                x = torch.ones(256, 256)
                for _ in range(len(calls) % 7):
                    x = x @ x / 256

        step()
        step()
        with shardcheck.measure(model, optimizer):
            step()
        benchmark(step)

    @pytest.mark.world_size(2)
    def test_counts(benchmark):
        calls = []
        benchmark(calls.append, 1)
        print("called once" if len(calls) == 1 else "called often")
"""
HOOK = """
    from pytest_shardcheck.benchmark import pytest_benchmark_group_stats
"""


@pytest.fixture
def session(pytester, monkeypatch):
    """Return what runs sessions one after another in one folder, as a user does."""
    # Of the worker that runs this: pytest-benchmark disables itself where it is set.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    pytester.makepyfile(test_timed=STEP, conftest=HOOK)
    pytester.makeini("[pytest]")

    def run(*args):
        return pytester.runpytest_subprocess(
            "-p", "no:randomly", "--benchmark-max-time=0.01", *args
        )

    return run


def test_saved_runs_are_compared_with_their_extra_information(session, pytester):
    args = ("--benchmark-autosave", "--benchmark-columns=min", "-k", "step")
    session(*args).assert_outcomes(passed=2, deselected=1)
    more = ("--benchmark-group-by=param:reshard,param:world", "--benchmark-cprofile=cumtime")
    again = session(*args, "--benchmark-compare", *more)
    again.assert_outcomes(passed=2, deselected=1)
    assert "'reshard=True world=world2': 2 tests" in again.stdout.str()
    again.stdout.fnmatch_lines_random(
        [
            "test_step[[]world2-True[]] | gloo, peak * 12 collectives, * on the wire (NOW) *",
            "test_step[[]world2-True[]] | gloo, peak * 12 collectives, * on the wire (0001_*",
            "*cProfile (time in s)*",
            "*test_timed.py:*(step)",
        ]
    )
    runs = [json.loads(path.read_text()) for path in pytester.path.glob(".benchmarks/*/*.json")]
    assert len(runs) == 2
    for result in (result for run in runs for result in run["benchmarks"]):
        reshard = result["params"]["reshard"]
        assert result["name"] == f"test_step[world2-{reshard}]"
        info = result["extra_info"]
        gathers = 8 if reshard else 4
        assert info.pop("collectives") == {"all_gather": gathers, "reduce_scatter": 4}
        assert info.pop("peak") > info.pop("state") > 0
        assert info.pop("wire_bytes") > 0
        assert info == {"world_size": 2, "backend": "gloo"}
    compared = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", "--columns=min", "--csv=times.csv"],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        check=True,
    )
    for number in ("0001", "0002"):
        rows = [row for row in compared.stdout.splitlines() if f"({number}_" in row]
        assert len(rows) == 2
        assert all("| gloo, peak " in row for row in rows), compared.stdout
    header, *rows = (pytester.path / "times.csv").read_text().splitlines()
    assert header == "name,param:reshard,param:world,min"
    assert len(rows) == 4


def test_spawned_ranks(session):
    result = session("--shardcheck-start=spawn", "-rP", "-k", "counts")
    result.assert_outcomes(passed=1, deselected=2)
    result.stdout.fnmatch_lines(["*Captured stdout call (ranks 0-1)*", "called often"])


def test_xdist_disables_it_and_says_so_once(session):
    pytest.importorskip("xdist")
    result = session("-n", "1", "-rP", "-k", "counts")
    result.assert_outcomes(passed=1)
    said = result.stdout.str() + result.stderr.str()
    assert said.count("Benchmarks are automatically disabled because xdist plugin is active") == 1
    result.stdout.fnmatch_lines(["*Captured stdout call (ranks 0-1)*", "called once"])
