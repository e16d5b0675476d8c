"""Hooks of others inside ours: save_on_cpu, checkpoints, a user's own, and where none may be."""

from __future__ import annotations

import gc
import os
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import (
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.utils.checkpoint import (
    checkpoint,
    create_selective_checkpoint_contexts,
)

from pytest_shardcheck.instruments.saved_activations import SavedActivations


def measured(saved, body):
    window = saved.open()
    try:
        body()
    finally:
        reading = saved.close(window)
    return reading


def relu_block(width):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


def step(blocks, x, **options):
    for block in blocks:
        x = checkpoint(block, x, **options) if options else block(x)
    x.sum().backward()


class TestCheckpoint:
    """L=4 blocks d-4d-d, b=32, d=256: inputs of 32,768 B, insides of 131,072 B."""

    @pytest.fixture
    def model(self):
        return nn.ModuleList(relu_block(256) for _ in range(4))

    @pytest.fixture
    def x(self):
        return torch.randn(32, 256)

    def test_none(self, saved, model, x):
        assert measured(saved, lambda: step(model, x)).bytes == 655_360

    @pytest.mark.parametrize("early_stop", [True, False])
    def test_not_reentrant(self, saved, model, x, early_stop):
        reading = measured(
            saved, lambda: step(model, x, use_reentrant=False, early_stop=early_stop)
        )
        assert reading.at_forward_end == reading.phases["forward"].bytes == 131_072
        assert reading.bytes == reading.phases["backward"].bytes == 262_144

    def test_reentrant(self, saved, model, x):
        reading = measured(saved, lambda: step(model, x.requires_grad_(), use_reentrant=True))
        assert (reading.at_forward_end, reading.bytes) == (131_072, 262_144)

    def test_naive_hooks_see_no_recomputation(self, model, x):
        seen = []

        def pack(tensor):
            seen.append(tensor.nbytes)
            return tensor.detach()

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            step(model, x, use_reentrant=False)
        assert sum(seen) == 131_072

    def test_gradients_are_the_same(self, saved, model, x):
        step(model, x)
        expected = [param.grad for param in model.parameters()]
        for reentrant in (False, True):
            model.zero_grad()
            measured(saved, lambda r=reentrant: step(model, x.requires_grad_(), use_reentrant=r))
            gradients = [param.grad for param in model.parameters()]
            assert all(map(torch.equal, gradients, expected))


class TestGeluBlocks:
    """Three blocks 8-32-8 with gelu, batch 4 (case A18): inputs of 128 B, insides of 1,024 B."""

    @pytest.fixture
    def blocks(self):
        return [nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)]

    def test_none(self, saved, blocks):
        reading = measured(saved, lambda: step(blocks, torch.randn(4, 8)))
        assert reading.at_forward_end == reading.bytes == 3_456

    def test_a_checkpoint_each(self, saved, blocks):
        reading = measured(saved, lambda: step(blocks, torch.randn(4, 8), use_reentrant=False))
        assert (reading.at_forward_end, reading.bytes) == (384, 384 + 1_024)

    def test_one_checkpoint_around_all(self, saved, blocks):
        whole = [nn.Sequential(*blocks)]
        reading = measured(saved, lambda: step(whole, torch.randn(4, 8), use_reentrant=False))
        # The recomputation brings everything back: no improvement at the peak.
        assert (reading.at_forward_end, reading.bytes) == (128, 3_456)

    def test_reentrant(self, saved, blocks):
        x = torch.randn(4, 8, requires_grad=True)
        reading = measured(saved, lambda: step(blocks, x, use_reentrant=True))
        assert reading.phases["forward"].count == 3
        assert reading.packs == 18  # all that was ever packed is not the peak (case A19)
        assert (reading.at_forward_end, reading.bytes) == (384, 384 + 1_024)

    def test_reentrant_without_gradient_trains_nothing(self, saved, blocks):
        x = torch.randn(4, 8)
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            reading = measured(saved, lambda: checkpoint(blocks[0], x, use_reentrant=True).sum())
        assert (reading.packs, reading.bytes, reading.backward) == (0, 0, False)

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_a_dropped_mask_is_held_while_it_lives(self, saved, reentrant):
        # Neither the mask nor the index wants a gradient: what is kept is the tensor itself.
        def body(x):
            return (x * index.float()).exp()[index]

        index = torch.randperm(4)
        x = torch.randn(4, requires_grad=True)
        plain = measured(saved, lambda: body(x).sum().backward())
        reading = measured(
            saved, lambda: checkpoint(body, x, use_reentrant=reentrant).sum().backward()
        )
        assert reading.phases["backward"].bytes >= plain.bytes

    def test_nothing_is_left_after_backward(self, saved, blocks):
        for options in ({}, {"use_reentrant": False}, {"use_reentrant": True}):
            x = torch.randn(4, 8, requires_grad=True)
            window = saved.open()
            step(blocks, x, **options)
            assert saved.close(saved.open()).packed == 0
            saved.close(window)

    def test_a_retained_recomputation_counts_as_long_as_it_lives(self, saved, blocks):
        x = torch.randn(4, 8, requires_grad=True)
        loss = checkpoint(blocks[0], x, use_reentrant=False).sum()
        window = saved.open()
        loss = checkpoint(blocks[0], x, use_reentrant=False).sum()
        for _ in range(3):
            loss.backward(retain_graph=True)
        reading = saved.close(window)
        assert reading.bytes == 128 + 1_024


def test_save_on_cpu_counts_the_copy_that_is_kept(saved):
    """On a machine without another device the copy is made by hand."""

    class Copies(saved_tensors_hooks):
        def __init__(self):
            super().__init__(lambda t: (t.device, t.clone()), lambda packed: packed[1])

    x = torch.ones(8, requires_grad=True)

    def body():
        with Copies():
            (x * x).sum().backward()

    reading = measured(saved, body)
    # Two copies, each with a storage of its own.
    assert (reading.packed, reading.count, reading.bytes) == (2, 2, 64)


def test_save_on_cpu_itself(saved):
    x = torch.ones(8)
    weight = torch.ones(8, requires_grad=True)

    def body():
        with save_on_cpu():
            (x * weight).sum().backward()

    assert measured(saved, body).bytes == 32


def test_a_copy_counts_as_long_as_its_owner_keeps_it(saved):
    cache = []

    def pack(tensor):
        cache.append(tensor.to(torch.bfloat16))
        return cache[-1]

    def body():
        with saved_tensors_hooks(pack, lambda tensor: tensor.float()):
            x.exp().sum().backward()

    x = torch.ones(8, requires_grad=True)
    window = saved.open()
    body()
    assert saved.close(saved.open()).bytes == 16
    cache.clear()
    assert saved.close(saved.open()).bytes == 0
    saved.close(window)


def test_what_a_user_packs_is_what_the_user_unpacks(saved):
    packed, unpacked = [], []

    def pack(tensor):
        packed.append(("token", tensor.detach()))
        return packed[-1]

    def unpack(token):
        unpacked.append(token)
        return token[1]

    x = torch.ones(3, requires_grad=True)

    def body():
        with saved_tensors_hooks(pack, unpack):
            y = x.exp() * 2
        y.sum().backward()

    measured(saved, body)
    assert unpacked[0] is packed[0]
    assert torch.equal(x.grad, 2 * x.exp())


def test_hooks_that_keep_tensors_elsewhere_are_named(saved):
    store = {}

    def pack(tensor):
        store[len(store)] = tensor.detach()
        return len(store) - 1

    def body():
        with saved_tensors_hooks(pack, store.pop):
            torch.ones(3, requires_grad=True).exp().sum().backward()

    reading = measured(saved, body)
    assert (reading.packs, reading.packed, reading.bytes) == (1, 0, 0)
    assert len(reading.unseen) == 1
    assert "pack returned no tensor, but int" in reading.unseen[0]


def test_checkpoints_are_not_named(saved):
    block, x = relu_block(4), torch.ones(2, 4)
    assert measured(saved, lambda: step([block], x, use_reentrant=False)).unseen == ()


def test_mutation_may_be_allowed(saved):
    x = torch.ones(3, requires_grad=True)

    def body():
        with allow_mutation_on_saved_tensors():
            y = x.exp()
            z = y.sin()
            y.mul_(2)
            z.sum().backward()

    body()
    expected, x.grad = x.grad, None
    measured(saved, body)
    assert torch.equal(x.grad, expected)


def test_an_error_in_a_pack_hook_is_the_users(saved):
    def pack(_):
        raise LookupError("mine")

    def body():
        with saved_tensors_hooks(pack, lambda tensor: tensor):
            torch.ones(3, requires_grad=True).exp()

    with pytest.raises(LookupError, match="mine"):
        measured(saved, body)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.parametrize("reentrant", [True, False])
def test_identity_hooks_in_a_checkpoint_leak_nothing(saved, reentrant):
    """Case A21: a layer of a checkpointed model under hooks that do nothing."""

    class Middle(nn.Linear):
        def forward(self, x):
            with saved_tensors_hooks(lambda t: t, lambda t: t):
                return super().forward(x)

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Middle(8, 8), nn.ReLU(), nn.Linear(8, 8))
    x = torch.randn(4, 8, requires_grad=True)
    window = saved.open()
    counts = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            step([model], x, use_reentrant=reentrant)
            held = saved.close(saved.open()).packed
            counts.append((held, sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())))
    finally:
        gc.enable()
        saved.close(window)
    assert counts[1:] == counts[:1] * 3


def test_selective_checkpoints_keep_what_no_hook_sees(saved):
    """The documented limit: the kept output of the product is in nobody's hook."""
    contexts = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    weight = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8)

    def body(x):
        return (x @ weight).exp()

    reading = measured(
        saved,
        lambda: checkpoint(body, x, use_reentrant=False, context_fn=contexts).sum().backward(),
    )
    assert reading.at_forward_end == x.nbytes
    assert reading.bytes > 0


class TestWindowsAndHooksOfOthersCross:
    def pair(self):
        seen = []

        def pack(tensor):
            seen.append(tensor.detach())
            return seen[-1]

        return seen, saved_tensors_hooks(pack, lambda tensor: tensor)

    def test_a_window_inside_theirs(self, saved):
        seen, hooks = self.pair()
        with hooks:
            reading = measured(saved, lambda: torch.ones(3, requires_grad=True).exp())
            torch.ones(3, requires_grad=True).exp()
        assert (len(seen), reading.packs) == (2, 1)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None

    def test_a_window_that_ends_after_theirs(self, saved):
        seen, hooks = self.pair()
        hooks.__enter__()
        window = saved.open()
        torch.ones(3, requires_grad=True).exp()
        hooks.__exit__()
        torch.ones(3, requires_grad=True).exp()
        assert (len(seen), saved.close(window).packs) == (1, 2)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None

    def test_a_window_that_ends_inside_theirs(self, saved):
        seen, hooks = self.pair()
        window = saved.open()
        with hooks:
            torch.ones(3, requires_grad=True).exp()
            reading = saved.close(window)
            loss = torch.ones(3, requires_grad=True).exp().sum()
        loss.backward()
        assert (len(seen), reading.packs) == (2, 1)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None

    def test_two_levels(self, saved):
        outer, outer_hooks = self.pair()
        inner, inner_hooks = self.pair()

        def body():
            with outer_hooks, inner_hooks:
                torch.ones(3, requires_grad=True).exp()

        assert measured(saved, body).packs == 1
        assert (len(outer), len(inner)) == (0, 1)  # as without us


class TestForbiddenHooks:
    @pytest.mark.parametrize(
        "transform",
        [
            lambda f: torch.func.grad(lambda x: f(x).sum()),
            torch.func.jacrev,
            torch.func.hessian,
            lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones(3)),
            lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum())),
        ],
        ids=["grad", "jacrev", "hessian", "vjp", "vmap of grad"],
    )
    def test_transforms_work_and_are_named(self, saved, transform):
        function, x = transform(lambda x: x.exp().sin()), torch.rand(3)
        with (
            saved_tensors_hooks(lambda t: t, lambda t: t),
            pytest.raises(RuntimeError, match="don't yet support saved tensor hooks"),
        ):
            function(x)
        expected, results = function(x), []

        def body():
            torch.ones(3, requires_grad=True).exp().sum().backward()
            results.append(function(x))
            torch.ones(3, requires_grad=True).exp().sum().backward()

        reading = measured(saved, body)
        result = results[0][0] if isinstance(results[0], tuple) else results[0]
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert torch.equal(result, expected)
        assert reading.packs == 2  # before and after
        assert len(reading.unseen) == 1
        assert "torch.func" in reading.unseen[0]

    def test_they_nest(self, saved):
        def body():
            with disable_saved_tensors_hooks("one"):
                with disable_saved_tensors_hooks("two"):
                    torch.ones(3, requires_grad=True).exp()
                torch.ones(3, requires_grad=True).exp()
                with pytest.raises(RuntimeError, match="one"), save_on_cpu():
                    pass
            torch.ones(3, requires_grad=True).exp()

        reading = measured(saved, body)
        assert reading.packs == 1
        assert reading.unseen == ("saved-tensor hooks were forbidden: one",)

    def test_a_window_opened_inside(self, saved):
        with disable_saved_tensors_hooks("inside"):
            window = saved.open()
            torch.ones(3, requires_grad=True).exp()
        torch.ones(3, requires_grad=True).exp()
        reading = saved.close(window)
        assert reading.packs == 1
        assert reading.unseen == ("saved-tensor hooks were forbidden",)

    def test_a_window_closed_inside(self, saved):
        window = saved.open()
        with disable_saved_tensors_hooks("inside"):
            saved.close(window)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        measured(saved, lambda: None)

    def test_a_users_hooks_forbid_them_as_without_us(self, saved):
        def body():
            with save_on_cpu(), disable_saved_tensors_hooks("no"):
                pass

        with pytest.raises(RuntimeError, match="no"):
            body()
        with pytest.raises(RuntimeError, match="no"):
            measured(saved, body)


def test_a_forked_child_is_not_measured(saved):
    push = torch._C._autograd._push_saved_tensors_default_hooks
    window = saved.open()
    x = torch.ones(3, requires_grad=True)
    before = x.exp().sum()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        clean = top is None and torch._C._autograd._push_saved_tensors_default_hooks is push
        before.backward()  # packed by the parent
        clean = clean and x.grad is not None
        os.write(write, b"clean" if clean else b"hooked")
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    assert os.read(read, 10) == b"clean"
    os.close(read)
    assert saved.close(window).packs == 1


def test_two_instances_see_the_same(saved, surroundings):
    other, x = SavedActivations(surroundings), torch.ones(3, requires_grad=True)
    readings = []

    def body():
        x.exp().sin().sum().backward()
        with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            x.exp().sin().sum().backward()

    def outer():
        readings.append(measured(other, body))

    readings.append(measured(saved, outer))
    assert [reading.bytes for reading in readings] == [24, 24]
    assert readings[0].packs == readings[1].packs == 4
