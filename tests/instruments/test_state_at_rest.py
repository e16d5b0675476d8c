"""Each figure by a closed form and, where storages are not shared, by a count of storages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.optim import LBFGS, SGD, Adagrad, AdamW

from pytest_shardcheck.instruments.state import (
    StateAtRest,
    Watched,
    measure_state,
    with_larger_grads,
)
from pytest_shardcheck.vocabulary.readings import StateBytes


def cpu_state(*things, **named):
    return measure_state(Watched(*things, **named), "cpu").by_device["cpu"]


def parts(*things, **named):
    return measure_state(Watched(*things, **named), "cpu").parts


def storages(*tensors):
    """Return the bytes of the tensors' storages, each once: the second source."""
    return sum(
        {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values()
    )


def step(model, optimizer, batch):
    def closure():
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        return loss

    optimizer.step(closure)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False))


# (64 + 8) + (8 + 8) + 64 numbers
PARAMS = 4 * 152


def test_a_module_and_its_optimizer(model):
    optimizer = AdamW(model.parameters())
    step(model, optimizer, torch.randn(4, 8))
    state = cpu_state(model, optimizer)
    assert state == StateBytes(
        params=PARAMS,
        grads=PARAMS,
        optimizer=2 * PARAMS + 5 * 4,  # two moments, and a step count for each of five tensors
        buffers=2 * 8 * 4 + 8,  # running mean and variance, one int64
    )
    assert state.params == storages(*model.parameters())
    assert state.grads == storages(*(param.grad for param in model.parameters()))
    assert state.optimizer == storages(*(t for s in optimizer.state.values() for t in s.values()))
    assert state.buffers == storages(*model.buffers())


def test_what_is_not_watched_is_none(model):
    optimizer = AdamW(model.parameters())
    assert cpu_state() == StateBytes()
    assert cpu_state(model).optimizer is None
    assert cpu_state(optimizer) == StateBytes(optimizer=0)


def test_frozen_parameters_have_no_gradients(model):
    model[0].requires_grad_(requires_grad=False)
    model(torch.randn(4, 8)).sum().backward()
    assert cpu_state(model).grads == PARAMS - 4 * 72


def test_tied_weights_count_once():
    emb, out = nn.Embedding(64, 16), nn.Linear(16, 64, bias=False)
    out.weight = emb.weight
    assert cpu_state([emb, out]).params == 4_096
    assert {name: part.params for name, part in parts(emb=emb, out=out).items()} == {
        "emb": 4_096,
        "out": 4_096,
    }


def test_gradients_that_are_views_of_a_bucket_count_their_own_bytes(model):
    bucket = torch.zeros(1_000)
    first, second = model[0].weight, model[2].weight
    first.grad, second.grad = bucket[100:164].view(8, 8), bucket[200:264].view(8, 8)
    assert cpu_state(model).grads == 2 * 64 * 4


def test_parameters_that_are_views_of_one_flat_tensor():
    flat = torch.zeros(100)
    first, second = nn.Parameter(flat[:40]), nn.Parameter(flat[30:90])
    assert cpu_state([first, second]).params == 4 * 90


def test_sparse_gradients():
    embedding = nn.Embedding(1_000, 4, sparse=True)
    embedding(torch.tensor([1, 5])).sum().backward()
    assert cpu_state(embedding).grads == 2 * (8 + 16)


def test_python_numbers_in_optimizer_state_are_no_tensors(model):
    optimizer = SGD(model.parameters(), momentum=0.9)
    step(model, optimizer, torch.randn(4, 8))
    for state in optimizer.state.values():
        state["step"] = 3
    assert cpu_state(optimizer).optimizer == PARAMS


def test_state_that_is_made_before_the_first_step(model):
    assert cpu_state(Adagrad(model.parameters())).optimizer == PARAMS + 5 * 4


def test_lbfgs_keeps_its_history_in_lists():
    layer = nn.Linear(8, 8)
    optimizer = LBFGS(layer.parameters(), lr=1e-3, max_iter=4, history_size=10)
    torch.manual_seed(0)

    def closure():
        optimizer.zero_grad()
        loss = layer(torch.ones(4, 8)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state[layer.weight]
    pairs = len(state["old_dirs"])
    assert pairs > 0
    tensors = [
        *state["old_dirs"],
        *state["old_stps"],
        *state["ro"],
        *filter(torch.is_tensor, state["al"]),
    ]
    rest = [state[name] for name in ("d", "t", "H_diag", "prev_flat_grad", "prev_loss")]
    expected = storages(*tensors, *filter(torch.is_tensor, rest))
    assert cpu_state(optimizer).optimizer == expected
    assert expected >= (2 * pairs + 2) * 72 * 4  # s and y of each pair, direction, gradient


def test_a_wrapped_optimizer_counts_once(model):
    inner = SGD(model.parameters(), momentum=0.9)
    step(model, inner, torch.randn(4, 8))
    wrapper = SimpleNamespace(optimizer=inner, state=inner.state, param_groups=inner.param_groups)
    assert cpu_state(wrapper, inner).optimizer == PARAMS


def test_parameters_that_only_the_optimizer_holds_are_its_own(model):
    masters = [param.detach().clone() for param in model.parameters()]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = SGD(masters, momentum=0.9)
    optimizer.step()
    assert cpu_state(model, optimizer) == StateBytes(
        params=PARAMS, grads=PARAMS, optimizer=2 * PARAMS, buffers=72, own_params=PARAMS
    )
    # Without the model nothing tells a master copy from a parameter.
    assert cpu_state(optimizer).optimizer == PARAMS


def test_named_parts_keep_subtotals(model):
    optimizer = SGD(model.parameters(), momentum=0.9)
    step(model, optimizer, torch.randn(4, 8))
    assert parts(net=model, opt=optimizer) == {
        "net": StateBytes(params=PARAMS, grads=PARAMS, buffers=72),
        "opt": StateBytes(optimizer=PARAMS),
    }


def test_bare_tensors_are_parameters_with_gradients_or_buffers():
    weight, frozen = torch.ones(4, requires_grad=True), nn.Parameter(torch.ones(3), False)
    (weight * 2).sum().backward()
    assert cpu_state([weight, frozen], torch.zeros(100)) == StateBytes(
        params=28, grads=16, buffers=400
    )


def test_reading_a_tensor_that_is_no_leaf_does_not_warn():
    result = torch.ones(4, requires_grad=True) * 2
    assert cpu_state(result) == StateBytes(params=0, grads=0, buffers=16)


def test_meta_modules_hold_nothing():
    with torch.device("meta"):
        model = nn.Linear(1_000, 1_000)
    assert cpu_state(model) == StateBytes(params=0, grads=0, buffers=0)


def test_each_device_has_its_own_figures():
    """Fake tensors stand for a GPU's: AdamW keeps its step counts on the CPU."""
    with FakeTensorMode():
        weight = nn.Parameter(torch.zeros(8, 8, device="cuda"))
        weight.grad = torch.zeros(8, 8, device="cuda")
        optimizer = AdamW([weight])
        moments = {name: torch.zeros(8, 8, device="cuda") for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight] = {"step": torch.zeros(()), **moments}
    assert measure_state(Watched(weight, optimizer), "cuda:0").by_device == {
        "cuda:0": StateBytes(params=256, grads=256, optimizer=512, buffers=0),
        "cpu": StateBytes(params=0, grads=0, optimizer=4, buffers=0),
    }


def test_larger_gradients_are_taken_device_by_device():
    now = StateAtRest(by_device={"cuda:0": StateBytes(params=8, grads=0)})
    then = StateAtRest(
        by_device={
            "cuda:0": StateBytes(params=99, grads=8),
            "cpu": StateBytes(params=99, grads=4),
        }
    )
    assert with_larger_grads(now, then).by_device == {
        "cuda:0": StateBytes(params=8, grads=8),
        "cpu": StateBytes(params=0, grads=4),  # parameters are those of now
    }


def test_the_ranks_device_is_listed_when_nothing_is_on_it(model):
    state = measure_state(Watched(model), "cuda:0").by_device
    assert state["cuda:0"] == StateBytes(params=0, grads=0, buffers=0)
    assert state["cpu"].params == PARAMS


def test_measuring_changes_nothing(model):
    before = [param.grad for param in model.parameters()]
    assert cpu_state(model) == cpu_state(model)
    assert [param.grad for param in model.parameters()] == before
