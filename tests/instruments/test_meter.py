from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.optimizer import _global_optimizer_pre_hooks

from pytest_shardcheck.instruments import Meter
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.readings import StateBytes


@pytest.fixture
def meter():
    meter = Meter(rank=3, device="cpu")
    yield meter
    meter.close()
    assert not _global_optimizer_pre_hooks


@pytest.fixture
def model():
    return nn.Linear(4, 4, bias=False)  # 64 B


def step(model, optimizer):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def names(meter):
    return [(r.region, r.occurrence, r.outermost) for r in meter.readings]


def test_a_region_is_read_after_its_block(meter, model):
    with meter.measure(model) as measured:
        model(torch.ones(1, 4)).sum().backward()
    assert (measured.rank, measured.region, measured.occurrence) == (3, "step", 0)
    assert (measured.outermost, measured.implicit) == (True, False)
    assert measured.memory.by_device == {"cpu": StateBytes(params=64, grads=64, buffers=0)}
    assert meter.readings == [measured.reading]


def test_reading_before_the_block_ends_is_a_usage_error(meter, model):
    measured = meter.measure(model)
    with pytest.raises(UsageError, match="'step': it was never entered"):
        _ = measured.memory
    with measured, pytest.raises(UsageError, match="'step': it is still open"):
        _ = measured.occurrence
    assert "ended" in repr(measured)


def test_an_exception_in_the_block_records_nothing(meter, model):
    with pytest.raises(ZeroDivisionError), meter.measure(model) as measured:
        _ = 1 / 0
    with pytest.raises(UsageError, match="ended by an exception"):
        _ = measured.memory
    meter.close()
    assert meter.readings == []


def test_an_exception_ends_the_regions_started_inside(meter, model):
    def failing():
        with meter.measure(model, region="inner"):
            meter.start(model, region="innermost")
            _ = 1 / 0

    with meter.measure(model, region="outer"):
        with pytest.raises(ZeroDivisionError):
            failing()
        with meter.measure(model, region="next"):
            pass
    assert names(meter) == [("next", 0, False), ("outer", 0, True)]


def test_regions_nest_and_repeat(meter, model):
    for _ in range(2):
        with meter.measure(model, region="epoch"), meter.measure(model):
            pass
    assert names(meter) == [
        ("step", 0, False),
        ("epoch", 0, True),
        ("step", 1, False),
        ("epoch", 1, True),
    ]


def test_a_measurement_measures_once(meter, model):
    with meter.measure(model) as measured:
        pass
    with pytest.raises(UsageError, match="it was opened before"), measured:
        pass


@pytest.mark.parametrize("region", ["", None, 3])
def test_a_region_has_a_name(meter, model, region):
    with pytest.raises(UsageError, match="expected a name"):
        meter.measure(model, region=region)


def test_gradients_are_those_of_the_optimizers_entry(meter, model):
    optimizer = SGD(model.parameters(), lr=0.1)
    with meter.measure(model, optimizer, net=model) as measured:
        step(model, optimizer)
    assert model.weight.grad is None
    assert measured.memory.grads == 64
    assert measured.memory.parts["net"].grads == 64


def test_gradients_are_the_largest_of_several_steps(meter):
    small, large = nn.Linear(4, 4, bias=False), nn.Linear(4, 8, bias=False)
    optimizers = [SGD(m.parameters(), lr=0.1) for m in (small, large)]
    with meter.measure(small, large) as measured:
        step(large, optimizers[1])
        step(small, optimizers[0])
    assert measured.memory.grads == 128


def test_gradients_of_the_end_are_the_larger_ones(meter, model):
    optimizer = SGD(model.parameters(), lr=0.1)
    with meter.measure(model) as measured:
        optimizer.step()
        model(torch.ones(1, 4)).sum().backward()
    assert measured.memory.grads == 64


def test_a_loop_that_is_not_ours(meter, model):
    meter.start(model, region="train")
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    meter.watch(optimizer, opt=optimizer)
    step(model, optimizer)
    memory = meter.stop().memory
    assert (memory.params, memory.grads, memory.optimizer) == (64, 64, 64)
    assert memory.parts == {"opt": StateBytes(optimizer=64)}


def test_stop_ends_the_innermost_start(meter, model):
    meter.start(model, region="outer")
    inner = meter.start(model, region="inner")
    assert meter.stop().reading is inner.reading
    assert meter.stop().region == "outer"


def test_stop_needs_a_start(meter, model):
    with pytest.raises(UsageError, match=r"stop\(\) without start\(\)"):
        meter.stop()
    with (
        meter.measure(model),
        pytest.raises(UsageError, match="inside the `with` block of region 'step'"),
    ):
        meter.stop()


def test_a_block_that_ends_before_its_inner_region_is_a_usage_error(meter, model):
    with (
        pytest.raises(UsageError, match=r"'outer' ended while region 'inner' inside it is open"),
        meter.measure(model, region="outer"),
    ):
        meter.start(model, region="inner")
    assert meter.readings == []


def test_close_ends_what_was_started(meter, model):
    meter.start(model)
    meter.close()
    meter.close()
    assert names(meter) == [("step", 0, True)]
    with pytest.raises(UsageError, match="the test has ended"):
        meter.start(model)


def test_the_body_is_the_region_where_none_was_opened(meter, model):
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    meter.watch(model, optimizer)
    step(model, optimizer)
    meter.close()
    (reading,) = meter.readings
    assert (reading.region, reading.implicit, reading.outermost) == ("body", True, True)
    assert (reading.memory.grads, reading.memory.optimizer) == (64, 64)


def test_a_body_that_watched_nothing_reads_none(meter):
    meter.close()
    (reading,) = meter.readings
    assert reading.memory.on("cpu") == StateBytes()
    assert reading.memory.state is None


def test_what_is_watched_outside_regions_is_watched_in_all(meter, model):
    meter.watch(model)
    with meter.measure() as first, meter.measure(SGD(model.parameters(), lr=0.1)) as second:
        pass
    assert (first.memory.params, first.memory.optimizer) == (64, None)
    assert (second.memory.params, second.memory.optimizer) == (64, 0)
    meter.watch(SGD(model.parameters(), lr=0.1))
    meter.close()
    assert len(meter.readings) == 2


def test_another_device_is_its_own(model):
    meter = Meter(rank=0, device="cuda:0")
    with meter.measure(model) as measured:
        pass
    meter.close()
    assert (measured.memory.params, measured.memory.by_device["cpu"].params) == (0, 64)


def test_a_reading_keeps_nothing_alive(meter):
    model = nn.Linear(4, 4)
    with meter.measure(model) as measured:
        pass
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert measured.memory.params == 80


def test_a_reading_is_plain(meter, model):
    with meter.measure(model, net=model) as measured:
        pass
    reading = measured.reading
    assert type(reading).from_json(reading.to_json()) == reading


def test_a_retired_meter_leaves_nothing_and_keeps_what_it_has(meter, model):
    assert not meter.can_retire(), "the body may still be the region"
    with meter.measure(model):
        assert meter.regions_open() == ["step"]
        assert not meter.can_retire()
    assert meter.can_retire()
    meter.retire("it is over")
    assert torch._C._len_torch_dispatch_stack() == 0
    with pytest.raises(UsageError, match="can't open region 'late': it is over"):
        meter.start(model, region="late")
    meter.watch(model)
    meter.close()
    assert names(meter) == [("step", 0, True)]


def test_a_meter_that_only_says_so_goes_on(meter, model):
    with meter.measure(model):
        pass
    meter.retire("it is over", stop=False)
    assert torch._C._len_torch_dispatch_stack() == 1
    with pytest.raises(UsageError, match="it is over"):
        meter.start(model)


def test_a_meter_can_not_retire_inside_another_dispatch_mode(meter, model):
    from torch.utils.flop_counter import FlopCounterMode

    with meter.measure(model):
        pass
    with FlopCounterMode(display=False):
        assert not meter.can_retire()
    assert meter.can_retire()
