"""The model of a plan: found, built, cut into units; on real tensors here, they are small."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_shardcheck import UsageError
from pytest_shardcheck.plan import models

MODULE = """
VALUE = 3
def build():
    return None
class Factory:
    @staticmethod
    def make():
        return None
"""


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Put modules where they can be imported, and forget them again."""
    (tmp_path / "planned.py").write_text(MODULE)
    (tmp_path / "halfway.py").write_text("import surely_absent_module")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("planned", "halfway"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("there")
def test_functions_are_found_by_name() -> None:
    assert models.find("planned:build")() is None
    assert models.find("planned:Factory.make")() is None


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("planned", "expected package.module:build"),
        (":build", "expected package.module:build"),
        ("planned:", "expected package.module:build"),
        ("some/planned.py:build", "names a file; .* such as some.planned:build"),
        ("unplanned:build", "there is no module 'unplanned'; run it from the folder"),
        ("planned.inner:build", "there is no module 'planned.inner'"),
        ("planned:bild", r"there is no 'bild' in planned \(.*planned.py\); it has build, Factory"),
        ("planned:VALUE", "it is a int; expected a function without arguments"),
    ],
)
def test_what_is_not_there_is_said(name: str, seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        models.find(name)


@pytest.mark.usefixtures("there")
def test_what_a_module_itself_misses_is_another_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="surely_absent_module"):
        models.find("halfway:build")


def test_a_function_returns_a_model_with_or_without_inputs() -> None:
    model = nn.Linear(2, 2)
    assert models.taken_apart(model) == (model, None)
    inputs = {"input": 1}
    assert models.taken_apart((model, inputs)) == (model, inputs)


@pytest.mark.parametrize(
    ("built", "seen"),
    [
        (None, "it returned a NoneType; expected a function without arguments that returns a mo"),
        ((nn.ReLU(), 3), "its inputs are a int; expected"),
        ((nn.ReLU(), {}, 3), "it returned a tuple; expected"),
    ],
)
def test_anything_else_is_refused(built: object, seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        models.taken_apart(built)


def test_what_is_shared_on_the_meta_device_stays_shared() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8))
    model[1].weight = model[0].weight
    model[2].weight.requires_grad_(False)
    before = len(list(model.parameters()))
    models.give_memory(model)
    assert model[1].weight is model[0].weight
    assert len(list(model.parameters())) == before == 3
    assert {one.device.type for one in (*model.parameters(), *model.buffers())} == {"cpu"}
    assert [one.requires_grad for one in model.parameters()] == [True, False, True]


def test_what_has_memory_is_left_alone() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight
    models.give_memory(model)
    assert model.weight is weight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3))
        self.head = nn.Linear(4, 8)


def test_units_are_the_members_of_the_outermost_lists() -> None:
    net = Net()
    assert models.units_of(net, ()) == list(net.layers)
    plain = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert models.units_of(plain, ()) == [plain[0], plain[2]]
    assert models.units_of(nn.Linear(4, 4), ()) == []


def test_units_can_be_named() -> None:
    net = Net()
    units = models.units_of(net, ("Linear",))
    assert [type(unit) for unit in units] == [nn.Linear] * 4
    assert models.units_of(net, ("Net",)) == []  # the whole model is one anyway
    with pytest.raises(UsageError, match=r"unit 'Layer': .* it has Net, Embedding, ModuleList"):
        models.units_of(net, ("Layer",))


class Loses(nn.Module):
    """Return something of the inputs' sum."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.make = make

    def forward(self, one: Any, other: Any = 0) -> Any:
        return self.make(self.weight * (one + other))


class Output:
    def __init__(self, loss: Any) -> None:
        self.loss = loss


@pytest.mark.parametrize(
    "make",
    [lambda x: x, lambda x: x.sum(), lambda x: {"loss": x.sum()}, lambda x: Output(x.sum())],
    ids=["tensor", "scalar", "mapping", "attribute"],
)
@pytest.mark.parametrize(
    "inputs",
    [torch.ones(2), (torch.ones(2), 0), {"one": torch.ones(2), "other": 0}],
    ids=["one", "tuple", "dict"],
)
def test_a_step_trains(make: Any, inputs: Any) -> None:
    model = Loses(make)
    optimizer = models.optimizer_named("sgd", model)
    models.take_step(model, optimizer, inputs)
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [1.0, 1.0]
    assert float(model.weight[0].detach()) == pytest.approx(0.999)


@pytest.mark.parametrize("output", [None, {"logits": 1}, Output(None)])
def test_without_a_loss_it_says_so(output: Any) -> None:
    model = Loses(lambda _: output)
    with pytest.raises(UsageError, match="without a loss; expected a tensor, or an output with"):
        models.take_step(model, models.optimizer_named("sgd", model), torch.ones(2))


def test_without_inputs_the_optimizer_steps_all_the_same() -> None:
    model = Loses(lambda _: pytest.fail("there is nothing to forward"))
    optimizer = models.optimizer_named("adamw", model)
    models.take_step(model, optimizer, None)
    assert model.weight.grad is not None
    assert len(optimizer.state) == 1
