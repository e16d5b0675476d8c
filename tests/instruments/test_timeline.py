"""What is recorded of a rank, held against its readings."""

from __future__ import annotations

import gc
import json
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

from pytest_shardcheck.instruments import Meter, c10d_tap, curves, sampled_ledger, saved_timeline
from pytest_shardcheck.instruments.blocks import Ledger
from pytest_shardcheck.instruments.dispatch import StorageMode
from pytest_shardcheck.vocabulary.demands import Demands
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.timelines import Timeline


@pytest.fixture(autouse=True)
def _frozen():
    gc.freeze()  # as in a rank: regions collect garbage
    yield
    gc.unfreeze()


@pytest.fixture
def meter():
    meter = Meter(0, "cpu", Demands(timeline=True, saved=True))
    yield meter
    meter.close()


@pytest.fixture
def one_rank(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    c10d_tap.install()
    yield
    dist.destroy_process_group()


def trained():
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    return model, SGD(model.parameters(), 0.1, momentum=0.9)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 32)).relu().sum().backward()
    optimizer.step()


def totals(its):
    columns = its.memory["cpu"].values()
    return [sum(figures) for figures in zip(*columns, strict=True)]


def region_of(its, reading):
    name = (reading.region, reading.occurrence)
    (region,) = (r for r in its.regions if (r.region, r.occurrence) == name and not r.failed)
    return region


def check(its, readings):
    """Hold the curves of each region against its reading: their peaks are equal to the byte."""
    live = totals(its)
    for reading in readings:
        region = region_of(its, reading)
        inside = [i for i, at in enumerate(its.at) if region.begin <= at <= region.end]
        figures = reading.memory.live_by_device["cpu"]
        top = max(inside, key=live.__getitem__)
        assert live[top] == figures.peak
        if reading.outermost:
            at_top = {name: column[top] for name, column in its.memory["cpu"].items()}
            assert {name: size for name, size in at_top.items() if size} == figures.at_peak
        held = [
            size
            for at, size in zip(its.saved.at, its.saved.bytes, strict=True)
            if region.begin <= at <= region.end
        ]
        assert max(held) == reading.saved.bytes
    assert list(its.at) == sorted(its.at)
    assert list(its.time_ns) == sorted(its.time_ns)
    assert list(its.saved.at) == sorted(its.saved.at)
    for column in its.memory["cpu"].values():
        assert len(column) == len(its.at) == len(its.time_ns)
        assert min(column) >= 0


def test_the_curve_has_the_peaks_of_all_regions(meter):
    model, optimizer = trained()
    step(model, optimizer)
    for _ in range(2):
        with meter.measure(model, optimizer):
            step(model, optimizer)
    with meter.measure(model, optimizer, region="outer"):
        step(model, optimizer)
        with meter.measure(model, optimizer, region="inner"):
            step(model, optimizer)
    its = meter.timeline()
    check(its, meter.readings)
    assert [r.region for r in its.regions] == ["step", "step", "inner", "outer"]
    assert [r.depth for r in its.regions] == [0, 0, 1, 0]
    # The last sample of a region is what was alive at its end.
    for reading in meter.readings:
        last = max(i for i, at in enumerate(its.at) if at <= region_of(its, reading).end)
        assert totals(its)[last] == reading.memory.live
    assert its.left_out == {}


def test_what_is_thinned_out_is_no_peak(meter, monkeypatch):
    monkeypatch.setattr(sampled_ledger, "_MOST_PENDING", 40)
    meter._panel._recorder.ledger._most = 40
    monkeypatch.setattr(curves, "MOST_SAMPLES", 30)
    monkeypatch.setattr(saved_timeline, "_MOST", 12)
    meter._panel._recorder.saved._most = 12
    model, optimizer = trained()
    for size in (5, 9, 2):
        with meter.measure(model, optimizer):
            for _ in range(size):
                step(model, optimizer)
            # A peak that no other step has, in the midst of many samples.
            torch.zeros(1_000 * size)
            nested = [torch.zeros(3) for _ in range(30)]
            model(torch.randn(size, 32)).sum()
            del nested
    its = meter.timeline()
    check(its, meter.readings)
    peaks = 3 * 4  # of each region, and of each phase in it
    assert len(its.at) <= 30 + peaks
    assert its.left_out["samples"] > 100
    assert len(its.saved.at) <= 12 + 3


def test_a_reading_is_the_same_with_and_without():
    def readings(demands):
        torch.manual_seed(0)
        meter = Meter(0, "cpu", demands)
        model, optimizer = trained()
        step(model, optimizer)
        with meter.measure(model, optimizer):
            step(model, optimizer)
            with meter.measure(model, region="inner"):
                model(torch.randn(8, 32))
        given = torch.ones(100, requires_grad=True)
        with meter.measure(region="saved after the peak"):
            freed = torch.zeros(1_000)
            result = given + 1
            del freed
            result.detach()  # allocates nothing: nobody would look at what was freed
            (result * result).sum().backward()
        meter.close()
        return [reading.to_json() for reading in meter.readings]

    plain = readings(Demands())
    assert plain[-1]["memory"]["live_by_device"]["cpu"]["at_peak"]["saved activations"] == 400
    assert readings(Demands(timeline=True)) == plain


def test_nothing_is_recorded_where_nobody_asks():
    meter = Meter(0, "cpu")
    panel = meter._panel
    assert type(panel._live._ledger) is Ledger
    assert type(panel._live._mode) is StorageMode
    assert panel._recorder is None
    assert meter.timeline() is None
    meter.close()


def test_phases_and_calls(meter, one_rank):
    model = nn.Linear(4, 4)
    optimizer = SGD(model.parameters(), 0.1)
    with meter.measure(model, optimizer):
        step(nn.Sequential(nn.Linear(32, 4), model), optimizer)
        dist.all_reduce(torch.ones(6))
    its = meter.timeline()
    assert [turn.phase for turn in its.turns] == ["forward", "backward", "optimizer", "forward"]
    assert [turn.at for turn in its.turns] == sorted(turn.at for turn in its.turns)
    (call,) = its.calls
    kind = its.kinds[call.kind]
    assert (kind.operation, kind.bytes, kind.axes) == ("all_reduce", 24, ("world", "default_pg"))
    assert its.turns[-1].at <= call.at <= its.operations
    assert 0 < call.time_ns <= call.returned_ns


def test_a_region_that_raises_is_marked_and_has_a_curve(meter):
    def fail():
        with meter.measure(region="fails"):
            kept.append(torch.zeros(100))
            raise LookupError

    kept = []
    with pytest.raises(LookupError):
        fail()
    with meter.measure(region="after"):
        pass
    its = meter.timeline()
    assert [(r.region, r.failed) for r in its.regions] == [("fails", True), ("after", False)]
    assert max(totals(its)) == 400


def test_the_body_is_a_region_where_the_test_opens_none(meter):
    meter.begin_body()
    with meter.measure(region="mine"):
        torch.zeros(3)
    assert [r.region for r in meter.timeline().regions] == ["mine"]

    alone = Meter(0, "cpu", Demands(timeline=True))
    alone.begin_body()
    torch.zeros(3)
    alone.close()
    assert [r.region for r in alone.timeline().regions] == ["body"]


def test_a_region_that_is_open_when_the_timeline_is_taken_ends_there(meter):
    meter.start(region="open")
    model, optimizer = trained()
    step(model, optimizer)
    its = meter.timeline()
    assert [(r.region, r.failed) for r in its.regions] == [("open", True)]
    meter.stop()  # as a fixture does after a test that failed
    assert meter.timeline().regions == its.regions


def test_the_largest_tensors_of_a_sample(meter):
    with meter.measure():
        small = torch.zeros(10)
        large = [torch.zeros(500), torch.zeros(500)]
        del large
        last = torch.zeros(20, dtype=torch.int64)
    its = meter.timeline()

    def largest(place):
        return {
            (its.tensors[tensor].bytes, count)
            for tensor, first, last, count in its.alive["cpu"]
            if first <= place <= last
        }

    live = totals(its)
    assert largest(live.index(4_040)) == {(40, 1), (2_000, 2)}
    assert largest(len(live) - 1) == {(small.nbytes, 1), (last.nbytes, 1)}
    assert {its.tensors[span[0]].dtype for span in its.alive["cpu"]} == {"float32", "int64"}


def test_other_threads_are_in_it(meter):
    kept = []
    with meter.measure():
        threads = [
            threading.Thread(target=lambda: kept.extend(torch.zeros(50) for _ in range(40)))
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    its = meter.timeline()
    check_live = totals(its)
    assert max(check_live) == meter.readings[0].memory.peak == 3 * 40 * 200
    assert list(its.at) == sorted(its.at)


def test_the_dead_are_not_kept_once_a_region_has_ended(meter):
    ledger = meter._panel._recorder.ledger
    with meter.measure():
        for _ in range(50):
            torch.zeros(10)
        assert len(ledger._graveyard) > 40
    assert ledger._graveyard == []
    assert len(meter._panel._recorder._known) == 0


def test_it_is_plain_data(meter):
    model, optimizer = trained()
    with meter.measure(model, optimizer):
        step(model, optimizer)
    its = meter.timeline()
    data = json.loads(json.dumps(its.to_json()))
    assert Timeline.from_json(data) == its
    with pytest.raises(UsageError, match="record it again"):
        Timeline.from_json({**data, "schema": 0})


def test_code_that_the_counter_does_not_see_has_no_curve(meter):
    with meter.measure():
        torch.zeros(10)
    meter._panel._recorder.unmeasured("inductor made it")
    its = meter.timeline()
    assert (its.at, its.memory, its.live_unmeasured) == ((), {}, "inductor made it")
