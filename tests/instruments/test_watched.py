from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from pytest_shardcheck.instruments.watched import Watched, opened
from pytest_shardcheck.vocabulary.errors import UsageError


@pytest.fixture
def model():
    return nn.Linear(2, 2)


@pytest.fixture
def optimizer(model):
    return AdamW(model.parameters())


def found(*things):
    result = opened(things)
    return result.modules, result.optimizers


def test_modules_and_optimizers_are_told_apart(model, optimizer):
    assert found(optimizer, model) == ([model], [optimizer])


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda m, o: [m, [o]], id="lists"),
        pytest.param(lambda m, o: {"m": (m,), "o": {"inner": o}}, id="dicts"),
        pytest.param(lambda m, o: [m, m, o, o], id="twice"),
        pytest.param(lambda m, o: SimpleNamespace(model=m, optimizer=o), id="trainer"),
        pytest.param(lambda m, o: SimpleNamespace(module=m, optimizers=[o]), id="engine"),
        pytest.param(lambda m, o: SimpleNamespace(model=[m], optimizer={"all": o}), id="nested"),
        pytest.param(lambda m, o: SimpleNamespace(submod=m, optim=o), id="pipeline stage"),
        pytest.param(lambda m, o: SimpleNamespace(model=m, optim="adamw", optimizer=o), id="text"),
        pytest.param(
            lambda m, o: SimpleNamespace(model=m, optimizer=SimpleNamespace(optimizer=o)),
            id="wrapped optimizer",
        ),
    ],
)
def test_containers_are_opened(model, optimizer, wrap):
    assert found(wrap(model, optimizer)) == ([model], [optimizer])


def test_an_engine_that_is_a_module_is_opened_too(model, optimizer):
    engine = nn.Sequential(model)
    engine.optimizer = optimizer
    assert found(engine) == ([engine], [optimizer])


def test_a_method_named_like_a_part_is_left_alone():
    class Lightning(nn.Module):
        def optimizers(self):
            raise AssertionError

    module = Lightning()
    assert found(module) == ([module], [])


def test_parts_that_come_later_are_found_when_measured(model, optimizer):
    trainer = SimpleNamespace(model=model, optimizer=None)
    watched = Watched(trainer)
    assert watched.open().optimizers == []
    trainer.optimizer = optimizer
    assert watched.open().optimizers == [optimizer]
    assert opened([SimpleNamespace(model=None)]).modules == []


def test_a_container_that_holds_itself(model):
    trainer = SimpleNamespace(model=model)
    trainer.module = trainer
    assert found([trainer]) == ([model], [])


def test_functional_optimizers_are_optimizers():
    functional = SimpleNamespace(state={}, param_group={"params": []})
    assert found(functional) == ([], [functional])


def test_an_iterator_can_be_measured_twice(model):
    watched = Watched(model.parameters(), named=model.parameters())
    assert [len(watched.open().tensors) for _ in range(2)] == [2, 2]
    assert len(watched.open_named()["named"].tensors) == 2


def test_named_things_are_watched_and_keep_their_names(model, optimizer):
    watched = Watched(model, opt=optimizer)
    assert watched.open().optimizers == [optimizer]
    assert watched.open_named()["opt"].modules == []
    watched.add(opt=SGD(model.parameters()))
    assert len(watched.open_named()["opt"].optimizers) == 2


def test_a_copy_is_added_to_alone(model, optimizer):
    first = Watched(model)
    first.copy().add(optimizer)
    assert first.open().optimizers == []


@pytest.mark.parametrize(
    "thing", [3, "model", None, object(), nn.Linear, SimpleNamespace(optim="adamw"), [1]]
)
def test_an_unknown_thing_is_named_with_what_is_accepted(thing):
    with pytest.raises(UsageError, match=r"can't watch .*; expected a module, an optimizer, "):
        Watched(thing)
    with pytest.raises(UsageError, match="can't watch"):
        Watched(name=thing)


def test_nothing_is_watched_after_a_usage_error(model):
    watched = Watched()
    with pytest.raises(UsageError):
        watched.add(model, 3)
    assert watched.open().modules == []


def test_tensors_are_watched_as_they_are():
    tensor = torch.zeros(3)
    assert opened([[tensor]]).tensors == [tensor]
