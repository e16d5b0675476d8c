"""Fake tensors have the strides and the storages that kernels give real ones."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pytest_shardcheck.simulation.layouts import _RULES, as_kernels_do


class Ruled(FakeTensorMode):
    """Fake tensors as torch has them, then our rules."""

    def dispatch(self, func, types, args=(), kwargs=None):
        return as_kernels_do(func, args, super().dispatch(func, types, args, kwargs or {}))


class Beside(TorchDispatchMode):
    """Run each operator that has a rule on real tensors, and on fake ones laid out as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.held = set()
        self.unruled = 0  # that torch alone would have got wrong
        self._seen = set()
        self._modes = Ruled(), FakeTensorMode()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in _RULES or FakeTensor in types:
            return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        call = str((func, looks(args), [one for one in args if not isinstance(one, torch.Tensor)]))
        if call in self._seen:
            return result
        self._seen.add(call)
        expected, torchs = (self.looks(mode, func, args) for mode in self._modes)
        assert looks(result) == expected, (func, looks(args))
        self.held.add(func)
        self.unruled += torchs != expected
        return result

    def looks(self, mode, func, args):
        fakes = tree_map(lambda one: faked(mode, one), args)
        with mode:
            return looks(func(*fakes))


def faked(mode, value):
    return mode.from_tensor(value.detach()) if isinstance(value, torch.Tensor) else value


def looks(values):
    return [
        (
            tuple(one.shape),
            [step for step, n in zip(one.stride(), one.shape, strict=True) if n > 1],
            one.untyped_storage().nbytes(),
        )
        for one in tree_leaves(values)
        if isinstance(one, torch.Tensor)
    ]


def layouts(*shape):
    """Yield tensors of a shape, in every order of its dimensions, with gaps, and expanded."""
    # Contiguous, channels last, the last two swapped, the first two swapped.
    orders = [(0, 1, 2, 3), (0, 2, 3, 1), (0, 1, 3, 2), (1, 0, 2, 3)]
    if len(shape) < 4:
        orders = list(itertools.permutations(range(len(shape))))[:4]
    for order in orders:
        inverse = sorted(range(len(shape)), key=order.__getitem__)
        yield torch.rand([shape[one] for one in order]).permute(inverse)
    yield torch.rand(2 * shape[0], *shape[1:])[::2]
    yield torch.rand(*shape[:-1], 1).expand(shape)


SHAPES = [(4, 5), (3, 4, 5), (2, 3, 4, 6)]
NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}
LOSSES = [
    functional.mse_loss,
    functional.smooth_l1_loss,
    functional.soft_margin_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
]


def modules_of(shape):
    yield NORMS[len(shape)](shape[1])
    yield NORMS[len(shape)](shape[1], affine=False).eval()
    yield NORMS[len(shape)](shape[1], track_running_stats=False)
    yield nn.LayerNorm(shape[-1])
    yield nn.LayerNorm(shape[-2:], bias=False)
    yield nn.LayerNorm(shape[-1], elementwise_affine=False)
    yield nn.LogSoftmax(1)
    if len(shape) == 4:
        yield nn.ReplicationPad2d(1)
        yield nn.ChannelShuffle(3)


@pytest.mark.parametrize("shape", SHAPES, ids=len)
def test_modules(shape):
    beside = Beside()
    for given in layouts(*shape):
        for module in modules_of(shape):
            through(beside, module, given)
    assert beside.unruled > 0


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_losses(reduction):
    beside = Beside()
    for given, target in itertools.product(layouts(3, 4, 5), repeat=2):
        for loss in LOSSES:
            through(beside, lambda one: loss(one, target, reduction=reduction), given)  # noqa: B023
    assert beside.unruled > 0


def through(beside, function, given):
    given = given.detach().requires_grad_()
    with beside:
        result = function(given)
        # In order, with two dimensions swapped, and one number for all, as sum() gives it.
        plain = torch.rand(result.shape)
        swapped = plain.mT.contiguous().mT if plain.dim() > 1 else plain
        for grad in (plain, swapped, torch.ones(()).expand(result.shape)):
            result.backward(grad, retain_graph=True)


def test_every_rule_was_held():
    beside = Beside()
    for given in layouts(2, 3, 4, 6):
        places = torch.arange(24).view(4, 6).expand(given.shape)
        for module in modules_of(given.shape):
            through(beside, module, given)
        through(beside, lambda one: functional.max_unpool2d(one, places, 2), given)  # noqa: B023
        for loss in LOSSES:
            through(beside, lambda one: loss(one, torch.rand(one.shape)), given)  # noqa: B023
        with beside:  # what other callers than nn.BatchNorm2d run
            ones, zeros = torch.ones(3), torch.zeros(3)
            batch = (given, ones, zeros)
            torch.ops.aten._native_batch_norm_legit(*batch, zeros, ones, True, 0.1, 1e-5)
            torch.ops.aten._native_batch_norm_legit.no_stats(*batch, True, 0.1, 1e-5)
            out, mean, spread, reserve = torch.ops.aten._batch_norm_with_update(
                *batch, zeros, ones, 0.1, 1e-5
            )
            torch.ops.aten.batch_norm_backward(
                out, given, ones, zeros, ones, mean, spread, True, 1e-5, [True] * 3, reserve
            )
    assert beside.held == set(_RULES)
