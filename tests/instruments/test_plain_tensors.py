from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from pytest_shardcheck.instruments.tensors import plain_tensors, tensors_in
from pytest_shardcheck.vocabulary.errors import UsageError


def sizes(tensor):
    return [part.numel() * part.element_size() for part in plain_tensors(tensor)]


class Wrapper(torch.Tensor):
    """A wrapper subclass, its bytes in two inner tensors."""

    @staticmethod
    def __new__(cls, values, scale):
        self = torch.Tensor._make_wrapper_subclass(cls, values.shape, dtype=torch.float32)
        self.values_, self.scale = values, scale
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func is torch.ops.aten.detach.default  # which a Parameter asks for
        return cls(args[0].values_, args[0].scale)


class Flattened(Wrapper):
    def __tensor_flatten__(self):
        return ["values_", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, _, __, ___):
        return Flattened(inner["values_"], inner["scale"])


@pytest.mark.parametrize("kind", [Wrapper, Flattened])
def test_a_wrapper_is_what_it_wraps(kind):
    inner = torch.zeros(8, 8, dtype=torch.int8), torch.zeros(8)
    assert sizes(kind(*inner)) == [64, 32]
    assert sizes(nn.Parameter(kind(*inner), requires_grad=False)) == [64, 32]


def test_a_nested_wrapper_is_opened_to_the_end():
    inner = Flattened(torch.zeros(8, dtype=torch.int8), torch.zeros(1))
    assert sizes(Flattened(inner, torch.zeros(2))) == [8, 4, 8]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_their_indices_and_values():
    dense = torch.eye(4)
    assert sizes(dense.to_sparse()) == [2 * 4 * 8, 16]  # two int64 indices of each of 4 values
    assert sizes(dense.to_sparse_csr()) == [5 * 8, 4 * 8, 16]
    assert sizes(dense.to_sparse_csc()) == [5 * 8, 4 * 8, 16]


def test_the_gradient_of_a_sparse_embedding():
    embedding = nn.Embedding(1000, 4, sparse=True)
    embedding(torch.tensor([1, 1, 2])).sum().backward()
    assert sizes(embedding.weight.grad) == [3 * 8, 3 * 16]  # not coalesced: three rows


def test_meta_tensors_hold_nothing():
    assert sizes(torch.zeros(1000, device="meta")) == []
    assert sizes(Flattened(torch.zeros(8, device="meta"), torch.zeros(2))) == [8]


def test_parameters_of_lazy_modules_hold_nothing_yet():
    assert sizes(nn.LazyLinear(4).weight) == []


def test_fake_tensors_hold_what_real_ones_would():
    with FakeTensorMode():
        fake = torch.zeros(10, 10, device="cuda")
    assert sizes(fake) == [400]
    assert [str(part.device) for part in plain_tensors(fake)] == ["cuda:0"]


def test_a_jagged_tensor_is_its_values_and_offsets():
    jagged = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)
    assert sizes(jagged)[0] == 20


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs mkldnn")
def test_an_opaque_layout_is_never_a_silent_zero():
    with pytest.raises(UsageError, match=r"layout torch\._mkldnn: its storage can't be read"):
        sizes(torch.zeros(4, 4).to_mkldnn())


@dataclass
class Slot:
    moment: torch.Tensor
    steps: int = 3


def test_tensors_are_found_in_nested_values():
    leaves = [torch.zeros(n) for n in range(1, 7)]
    nested = {
        "a": leaves[0],
        "list": [leaves[1], (leaves[2], None, 3.0)],
        "deque": deque([leaves[3]]),
        "slot": Slot(leaves[4]),
        leaves[0]: {"under a parameter": leaves[5]},
    }
    nested["itself"] = nested
    assert sum(tensor.numel() for tensor in tensors_in(nested)) == 1 + 2 + 3 + 4 + 5 + 6
    assert list(tensors_in(4.0)) == []
