"""The private torch interfaces behind saved activations, as they must be: each fails loudly."""

from __future__ import annotations

import inspect
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import graph
from torch.utils import checkpoint as checkpoints

from pytest_shardcheck.instruments import _torch_private as private
from pytest_shardcheck.instruments import saved_hooks
from pytest_shardcheck.instruments.autograd_runs import autograd_runs


def test_hooks_have_one_python_caller_that_looks_them_up_when_it_calls():
    source = inspect.getsource(graph)
    assert source.count("_push_saved_tensors_default_hooks") == 1
    assert source.count("_pop_saved_tensors_default_hooks") == 1
    assert "torch._C._autograd._push_saved_tensors_default_hooks(" in source
    disable = inspect.getsource(graph.disable_saved_tensors_hooks)
    assert "torch._C._autograd._saved_tensors_hooks_disable(error_message)" in disable
    assert "torch._C._autograd._saved_tensors_hooks_enable()" in disable
    for transform in (torch.func.vjp, torch.func.grad, torch.func.jacrev):
        assert transform  # they go through the former: see test_saved_activations_composed


def test_the_innermost_pair_can_be_read_and_is_what_was_pushed():
    assert private.top_hooks() is None

    def pack(tensor):
        return tensor

    with graph.saved_tensors_hooks(pack, pack):
        assert private.top_hooks() == (pack, pack)
        with graph.saved_tensors_hooks(len, len):
            assert private.top_hooks() == (len, len)
    assert private.top_hooks() is None


def test_it_is_known_where_hooks_are_forbidden():
    assert private.hooks_are_enabled()
    with graph.disable_saved_tensors_hooks("no"):
        assert not private.hooks_are_enabled()


def test_the_hooks_of_checkpoints_are_known_by_name(monkeypatch):
    pushed = []
    push = torch._C._autograd._push_saved_tensors_default_hooks
    monkeypatch.setattr(
        torch._C._autograd,
        "_push_saved_tensors_default_hooks",
        lambda pack, unpack: pushed.append(pack) or push(pack, unpack),
    )
    x = torch.ones(2, requires_grad=True)
    checkpoints.checkpoint(lambda x: x.exp().sin(), x, use_reentrant=False).sum().backward()
    forward, recomputation = pushed
    assert private.is_checkpoint(forward)
    assert not private.is_checkpoint(recomputation)
    assert private.is_recomputation(recomputation)
    assert not private.is_recomputation(forward)
    assert not private.is_recomputation(lambda tensor: tensor)


def test_a_recomputation_keeps_the_very_tensor_that_its_hook_was_given():
    source = inspect.getsource(checkpoints._recomputation_hook)
    assert "x = x.detach() if x.requires_grad else x" in source
    assert "target_frame.recomputed[gid][holder.handles[gid]] = x" in source


def test_a_tensor_that_only_a_graph_holds_keeps_its_weak_references():
    died = []
    refs = []

    def pack(tensor):
        kept = tensor.detach()
        refs.append(weakref.ref(kept, died.append))
        return kept

    x = torch.ones(2, requires_grad=True)
    with graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = x.exp().sum()
    assert not died
    y.backward()
    assert died == refs


def test_autograd_numbers_its_runs_one_by_one():
    x = torch.ones(2, requires_grad=True)
    before = autograd_runs()
    assert autograd_runs() == before
    for _ in range(3):
        (x + 1).sum().backward()
    assert autograd_runs() == before + 3
    torch.autograd.grad((x + 1).sum(), x)
    assert autograd_runs() == before + 4


def test_autograd_runs_leave_nothing_behind():
    before = autograd_runs()
    with torch.inference_mode(), torch.no_grad():
        assert autograd_runs() == before
    with graph.disable_saved_tensors_hooks("no"):
        assert autograd_runs() == before


def test_views_lead_to_their_parameter():
    weight = nn.Parameter(torch.ones(2, 3))
    assert weight.t()._base is weight
    assert weight.view(6)[2:4]._base is weight
    with torch.no_grad():
        assert weight.t()._base is weight
    assert weight.detach()._base is None


def test_an_alias_has_its_tensors_version():
    x = torch.ones(2, requires_grad=True).exp()
    alias = x.detach()
    x.add_(1)
    assert alias._version == x._version == 1


def test_the_compiler_skips_our_functions():
    frames = torch._C._dynamo.eval_frame
    assert callable(frames.set_code_exec_strategy)
    codes = list(private._codes(vars(saved_hooks), saved_hooks.__name__))
    assert saved_hooks.PlainHooks.pack.__code__ in codes
    assert saved_hooks.alias.__code__ in codes
    assert torch.utils.checkpoint.checkpoint.__code__ not in codes


@pytest.mark.parametrize("name", ["_FrameExecStrategy", "_FrameAction"])
def test_what_tells_the_compiler_is_there(name):
    assert hasattr(torch._C._dynamo.eval_frame, name)
