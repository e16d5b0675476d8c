"""The page and the traces that a session leaves behind."""

from __future__ import annotations

import json
import re

import pytest

from pytest_shardcheck.plugin.records import Records, Timelines
from pytest_shardcheck.worlds.packed_timelines import unpacked

# Without torch on top: a session of pytester that collects it would import it anew each time.
TESTS = """
    import os, signal, pytest

    def step(model, optimizer):
        import torch
        optimizer.zero_grad()
        model(torch.randn(8, 32)).sum().backward()
        optimizer.step()

    @pytest.mark.max_memory("1 MB")
    def test_passes(device_mesh, shardcheck):
        import torch
        from torch.distributed.fsdp import fully_shard
        model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(3)))
        for layer in [*model, model]:
            fully_shard(layer, mesh=device_mesh)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        step(model, optimizer)
        for _ in range(2):
            with shardcheck.measure(model, optimizer):
                step(model, optimizer)

    def test_ranks_differ(world, process_group, shardcheck):
        import torch
        import torch.distributed as dist
        kept = torch.zeros(1000)
        with shardcheck.measure():
            torch.zeros(100 * (1 + world.rank))
            dist.all_reduce(torch.ones(6))
            if world.rank == 1:
                raise RuntimeError("</script>")

    def test_dies(world, shardcheck):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_not_followed(world): pass

    def test_skips(world): pytest.skip("not here")

    @pytest.mark.parametrize("evil", ["</script><b>"])
    def test_evil(evil, shardcheck): pass

    def test_alone(): pass
"""
INI = "[pytest]\nshardcheck_world_size = 2\n"


class _Keeper:
    def __init__(self):
        self.records = Records()
        self.timelines = Timelines()

    def pytest_runtest_logreport(self, report):
        self.records.add(report)
        self.timelines.add(report)


def run(pytester, *args):
    keeper = _Keeper()
    pytester.inline_run("-p", "no:randomly", *args, plugins=[keeper])
    by_name = {
        re.sub(r".*::(\w+)\[.*", r"\1", record.nodeid): record for record in keeper.records.all()
    }
    return keeper, by_name


def data_of(page):
    (rows,) = re.findall(r'<script type="application/json" id="worlds">(.*?)</script>', page)
    packed = re.findall(r'data-world="(\d+)" data-rank="(\d+)">([\w+/=]+)</script>', page)
    return json.loads(rows)["rows"], {(int(w), int(r)): unpacked(text) for w, r, text in packed}


def test_the_controller_leaves_a_page_and_traces_of_all_workers(pytester):
    pytest.importorskip("xdist")
    pytester.makeini(INI)
    pytester.makepyfile(test_it=TESTS)
    args = ["--shardcheck-html=new/folder/page.html", "--shardcheck-trace=traces"]
    keeper, records = run(pytester, "-p", "xdist", "-n", "2", *args)
    page = (pytester.path / "new" / "folder" / "page.html").read_text()
    rows, timelines = data_of(page)

    assert {row["nodeid"]: row["outcome"] for row in rows} == {
        record.nodeid: record.outcome for record in keeper.records.all()
    }
    assert sorted(row["outcome"] for row in rows) == ["failed"] * 2 + ["passed"] * 3 + ["skipped"]
    number = {row["nodeid"]: at for at, row in enumerate(rows)}

    def of(name):
        world = number[records[name].nodeid]
        return {rank: its for (at, rank), its in timelines.items() if at == world}

    # Of every rank, the peak of the drawn curve is that of its reading, to the byte.
    assert set(of("test_passes")) == {0, 1}
    for reading in records["test_passes"].readings:
        its = of("test_passes")[reading.rank]
        (region,) = (r for r in its.regions if r.occurrence == reading.occurrence)
        places = [i for i, at in enumerate(its.at) if region.begin <= at <= region.end]
        columns = its.memory["cpu"].items()
        top = max(places, key=lambda i: sum(column[i] for _, column in columns))
        at_top = {name: column[top] for name, column in columns if column[top]}
        assert sum(at_top.values()) == reading.memory.peak
        assert at_top == reading.memory.at_peak
        held = [b for at, b in zip(its.saved.at, its.saved.bytes, strict=True) if at <= region.end]
        assert max(held) == reading.saved.bytes
        inside = [c for c in its.calls if region.begin_ns <= c.time_ns <= region.end_ns]
        assert [its.kinds[c.kind].operation for c in inside] == [
            call.operation for call in reading.collectives.calls
        ]

    # The failing world's ranks have theirs too, up to where they failed.
    differ = of("test_ranks_differ")
    assert "RuntimeError" in rows[number[records["test_ranks_differ"].nodeid]]["failure"]
    assert [r.failed for r in differ[1].regions] == [True]
    assert [its.kinds[0].operation for its in differ.values()] == ["all_reduce"] * len(differ)
    # Who died has none, and is not missed: nobody followed the last two.
    assert 1 not in of("test_dies")
    assert not of("test_not_followed")

    traces = {path.name: path for path in (pytester.path / "traces").iterdir()}
    assert len(traces) == len({world for world, _ in timelines})
    for name in ("passes", "evil"):
        (trace,) = (p for n, p in traces.items() if n.startswith(f"test_it-test_{name}-world2"))
        data = json.loads(trace.read_text())
        assert data["otherData"]["test"] == records[f"test_{name}"].nodeid
        assert {event["pid"] for event in data["traceEvents"]} == {0, 1}
    assert all(
        of(name)
        == {rank: unpacked(text) for rank, text in keeper.timelines.of(record.nodeid).items()}
        for name, record in records.items()
    )
    # Nothing half written is left.
    assert [path.name for path in (pytester.path / "new" / "folder").iterdir()] == ["page.html"]


def test_a_page_without_worlds(pytester):
    pytester.makepyfile("def test_alone(): pass")
    result = pytester.runpytest(
        "-p", "no:randomly", "--shardcheck-html=page.html", "--shardcheck-trace=traces"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["shardcheck: page of 0 worlds: *page.html"])
    assert data_of((pytester.path / "page.html").read_text()) == ([], {})
    assert not (pytester.path / "traces").exists()


def test_an_interrupt_leaves_a_page_of_what_ran(pytester):
    pytester.makepyfile("def test_alone(): raise KeyboardInterrupt")
    args = ("-p", "no:randomly", "--shardcheck-html=page.html")
    result = pytester.runpytest_inprocess(*args, no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert data_of((pytester.path / "page.html").read_text()) == ([], {})


def test_collecting_writes_nothing(pytester):
    pytester.makepyfile("def test_alone(): pass")
    pytester.runpytest("-p", "no:randomly", "--shardcheck-html=page.html", "--collect-only")
    assert not (pytester.path / "page.html").exists()


def test_what_cannot_be_written_fails_the_session(pytester):
    # What configure could not know: the folder became a file meanwhile.
    pytester.makepyfile("def test_alone(): open('later', 'w').close()")
    args = ["-p", "no:randomly", "--shardcheck-html=later/page.html", "--shardcheck-trace=traces"]
    result = pytester.runpytest(*args)
    assert result.ret == pytest.ExitCode.INTERNAL_ERROR
    result.stdout.fnmatch_lines(
        ["shardcheck: --shardcheck-html: *page.html could not be written: *"]
    )
