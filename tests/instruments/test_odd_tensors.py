"""Tensors that are no ordinary ones must neither crash what works without us nor be miscounted."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_shardcheck.instruments import Meter


@pytest.fixture
def meter():
    meter = Meter(0, "cpu")
    yield meter
    meter.close()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda model, batch: torch.func.grad(lambda x: model(x).sum())(batch),
        lambda model, batch: torch.func.vmap(model)(batch),
        lambda model, batch: torch.func.jvp(model, (batch,), (torch.ones_like(batch),)),
    ],
    ids=["grad", "vmap", "jvp"],
)
def test_modules_inside_transforms(meter, transformed):
    model = nn.Linear(8, 8)
    with meter.measure(model) as measured:
        transformed(model, torch.ones(2, 8))
    assert measured.memory.growth == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors(meter):
    with meter.measure() as measured:
        nested = torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(5, 4)])
    assert measured.memory.growth >= 8 * 4 * 4
    del nested


def test_symbolic_sizes_are_no_memory(meter):
    model = nn.Linear(4, 4)
    batch = torch.ones(3, 4)
    with meter.measure(model) as measured:
        torch.export.export(model, (batch,), dynamic_shapes=({0: torch.export.Dim("b")},))
    assert measured.memory.peak is not None


def test_opaque_layouts_are_saved(meter):
    leaf = torch.ones(4, 4, requires_grad=True)
    with meter.measure() as measured:
        (leaf.to_mkldnn().relu().to_dense()).sum().backward()
    assert leaf.grad is not None
    assert measured.saved is not None
    assert any("has no bytes" in reason for reason in measured.saved.unseen)
