"""Code that inductor made is noticed; ours is never compiled, and no region compiles anew."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import nn

from pytest_shardcheck.instruments import Meter
from pytest_shardcheck.instruments.compiled_code import WHY, CompiledCode
from pytest_shardcheck.vocabulary.readings import Reading

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)


class Inductor:
    """Stand in for torch._inductor, whose compiler takes a minute of a loaded machine."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        monkeypatch.delitem(sys.modules, "torch._inductor.output_code", raising=False)
        monkeypatch.delitem(sys.modules, "torch._inductor.codecache", raising=False)

    def load(self):
        class CompiledFxGraph:
            def __call__(self, inputs):
                return inputs

        class PyCodeCache:
            modules: ClassVar = []

        for name, held in {"output_code": CompiledFxGraph, "codecache": PyCodeCache}.items():
            module = ModuleType(name)
            setattr(module, held.__name__, held)
            self._monkeypatch.setitem(sys.modules, f"torch._inductor.{name}", module)
        self.graph, self.modules = CompiledFxGraph, PyCodeCache.modules


@pytest.fixture
def inductor(monkeypatch):
    return Inductor(monkeypatch)


@pytest.fixture
def compiled_code():
    code = CompiledCode()
    yield code
    code.stop()


def test_where_nobody_loads_inductor_nothing_is_done(inductor, compiled_code):
    compiled_code.start()
    assert not compiled_code.why_unmeasured()
    assert "torch._inductor.output_code" not in sys.modules


def test_a_call_of_a_graph_is_noticed(inductor, compiled_code):
    inductor.load()
    compiled_code.start()
    assert not compiled_code.why_unmeasured()
    assert inductor.graph()([1]) == [1]
    assert compiled_code.why_unmeasured() == WHY


def test_inductor_that_is_loaded_in_a_region_is_noticed(inductor, compiled_code):
    compiled_code.start()
    assert not compiled_code.why_unmeasured()
    inductor.load()
    inductor.modules.append("generated, and run: there is no other reason to compile")
    assert compiled_code.why_unmeasured() == WHY


def test_what_was_compiled_before_and_does_not_run_changes_nothing(inductor, compiled_code):
    inductor.load()
    inductor.modules.append("of another test")
    compiled_code.start()
    assert not compiled_code.why_unmeasured()


def test_nothing_is_left_behind(inductor, compiled_code):
    inductor.load()
    original = inductor.graph.__call__
    compiled_code.start()
    assert inductor.graph.__call__ is not original
    compiled_code.stop()
    assert inductor.graph.__call__ is original


def test_live_memory_is_unmeasured_from_then_on(inductor):
    inductor.load()
    meter = Meter(rank=0, device="cpu")
    for region, run in {"before": False, "in it": True, "after": False}.items():
        with meter.measure(region=region):
            torch.ones(4)
            if run:
                inductor.graph()([])
    meter.close()
    before, *unknown = meter.readings
    assert (before.memory.peak, before.memory.live_unmeasured) == (16, "")
    for reading in unknown:
        assert (reading.memory.peak, reading.memory.growth) == (None, None)
        phase = Reading.from_json(reading.to_json()).phases["forward"].memory
        assert (phase.peak, phase.live_unmeasured) == (None, WHY)


@pytest.fixture
def counting():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


@pytest.fixture
def meter():
    meter = Meter(rank=0, device="cpu")
    yield meter
    meter.close()


def test_no_region_compiles_anew(meter, counting):
    # torch guards on global hooks, and runs eagerly after eight graphs of one function.
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = torch.compile(model, backend=counting)
    compiled(torch.ones(2, 8)).sum().backward()
    for _ in range(9):
        with meter.measure(model):
            compiled(torch.ones(2, 8)).sum().backward()
    assert counting.frame_count == 1
    # ReLU saves its output, Linear its input, 64 B each.
    assert {reading.saved.bytes for reading in meter.readings} == {128}


def test_a_compiled_optimizer_compiles_nothing_of_ours(meter, counting, monkeypatch):
    from torch._dynamo import convert_frame

    compiled = []
    original = convert_frame._compile
    monkeypatch.setattr(
        convert_frame,
        "_compile",
        lambda code, *args, **kwargs: (
            compiled.append(code.co_filename) or original(code, *args, **kwargs)
        ),
    )
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    step = torch.compile(optimizer.step, backend=counting)
    with meter.measure(model, optimizer):
        model(torch.ones(2, 8)).sum().backward()
        step()
    assert any(file.endswith("sgd.py") for file in compiled)
    assert not [file for file in compiled if "pytest_shardcheck" in file or "weakref" in file]
