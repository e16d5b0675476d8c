"""What autograd holds, when, and for whom; parameters apart."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch import nn
from torch.optim import SGD

from pytest_shardcheck.instruments.saved_activations import SavedActivations

FLOAT = 4


def measured(saved, body, *known):
    window = saved.open(known)
    try:
        body()
    finally:
        reading = saved.close(window)
    return reading


def blocks(layers: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
    )


@pytest.mark.parametrize(("layers", "batch", "width"), [(4, 32, 256), (1, 1, 8), (3, 5, 16)])
def test_relu_blocks_save_the_closed_form(saved, layers, batch, width):
    model, x = blocks(layers, width), torch.randn(batch, width)
    reading = measured(saved, lambda: model(x).sum().backward())
    # Each block saves its input (b*d) and the ReLU's output (4*b*d), the latter twice.
    assert reading.bytes == 20 * layers * batch * width
    assert reading.storage_bytes == reading.at_forward_end == reading.bytes
    assert reading.count == 3 * layers
    # The transposed weights too; not that of the first layer, whose input wants no gradient.
    assert reading.packed == reading.packs == reading.count + 2 * layers - 1
    assert reading.backward
    assert reading.unseen == ()


def test_a_naive_count_agrees_where_nothing_is_shared(saved):
    x = torch.randn(8, 16, requires_grad=True)
    alive, most = 0, 0

    class Held:
        def __init__(self, tensor):
            nonlocal alive, most
            self.tensor, self.size = tensor.detach(), tensor.nbytes
            alive += self.size
            most = max(most, alive)

        def __del__(self):
            nonlocal alive
            alive -= self.size

    def step():
        y = x.exp().sin().tanh()
        (y * y.cos().detach()).sum().backward()

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        step()
    reading = measured(saved, step)
    # exp saves its output, which sin saves as its input: one storage, two tensors.
    assert alive == 0
    assert reading.bytes == most - x.nbytes


def test_modules_share_the_bytes_at_the_peak(saved, surroundings):
    model, x = blocks(2, 8), torch.randn(3, 8)
    surroundings.learn([model])
    reading = measured(saved, lambda: model(x).sum().backward())
    assert reading.modules == {"0.0": 96, "0.1": 384, "1.0": 96, "1.1": 384}
    assert sum(reading.modules.values()) == reading.bytes


def test_modules_are_those_of_the_peak_not_of_the_end(saved, surroundings):
    model = nn.ModuleDict({"big": nn.Linear(64, 1), "small": nn.Linear(2, 1)})
    surroundings.learn([model])

    def body():
        model["big"](torch.ones(1, 64)).sum().backward()
        model["small"](torch.ones(1, 2)).sum().backward()

    assert measured(saved, body).modules == {"big": 64 * FLOAT}


def test_held_until_the_graph_lets_go_not_until_the_first_unpack(saved):
    x = torch.ones(10, requires_grad=True)
    losses = []

    def keep():
        for _ in range(3):
            losses.append(x.exp().sum())
            losses[-1].backward(retain_graph=True)

    reading = measured(saved, keep)
    assert (reading.count, reading.bytes) == (3, 120)
    assert measured(saved, lambda: None).bytes == 120  # still held, by the losses
    losses.clear()
    assert measured(saved, lambda: None).bytes == 0


def test_a_naive_counter_that_stops_at_the_first_unpack_misses_a_retained_graph(saved):
    held = 0

    def pack(tensor):
        nonlocal held
        held += 1
        return tensor.detach()

    def unpack(tensor):
        nonlocal held
        held -= 1
        return tensor

    def step():
        nonlocal loss
        loss = torch.ones(4, requires_grad=True).exp().sum()
        loss.backward(retain_graph=True)

    loss = None
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        step()
    assert held == 0  # and the graph is still there
    measured(saved, step)
    assert measured(saved, lambda: None).count == 1


class TestParameters:
    def test_weights_and_their_views_are_left_out(self, saved):
        layer, x = nn.Linear(4, 3), torch.ones(2, 4, requires_grad=True)
        reading = measured(saved, lambda: layer(x).sum().backward())
        assert (reading.packed, reading.count, reading.bytes) == (2, 1, x.nbytes)

    def test_a_leaf_that_wants_a_gradient_is_an_activation(self, saved):
        # What a pipeline's stage receives, and what a reentrant checkpoint recomputes from.
        x = torch.ones(6, requires_grad=True)
        assert measured(saved, lambda: (x * x).sum().backward()).count == 2

    def test_a_named_leaf_is_a_parameter(self, saved):
        weight, x = torch.ones(6, requires_grad=True), torch.ones(6, requires_grad=True)
        reading = measured(saved, lambda: (x * weight).sum().backward(), weight)
        assert (reading.packed, reading.count) == (2, 1)

    @pytest.mark.parametrize("training", [True, False])
    def test_buffers_of_modules_that_run_are_left_out(self, saved, training):
        norm, x = nn.BatchNorm1d(4).train(training), torch.randn(8, 4, requires_grad=True)
        reading = measured(saved, lambda: norm(x).sum().backward())
        # Batch statistics (mean, inverse deviation: 4 numbers each) are saved in training.
        assert reading.bytes == x.nbytes + (2 * 4 * FLOAT if training else 0)

    def test_a_buffer_that_forward_replaces_is_left_out(self, saved):
        class Masked(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("mask", torch.ones(4))

            def forward(self, x):
                return x * self.mask

        model, x = Masked(), torch.ones(4, requires_grad=True)
        measured(saved, lambda: model(x).sum().backward())
        model.mask = torch.zeros(4)
        assert measured(saved, lambda: model(x).sum().backward()).count == 0

    def test_a_detached_weight_of_a_module_that_runs_is_left_out(self, saved):
        layer, x = nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True)
        layer.forward = lambda x: x @ layer.weight.detach().t()
        reading = measured(saved, lambda: layer(x).sum().backward())
        assert (reading.packed, reading.count) == (1, 0)

    def test_a_storage_that_was_a_parameters_is_not_one_for_ever(self, saved):
        for _ in range(200):
            dead = nn.Linear(16, 16, bias=False)
            saved.learn([dead.weight.data])
            del dead
        x = [torch.ones(16, 16, requires_grad=True) for _ in range(200)]
        assert measured(saved, lambda: sum(t.exp().sum() for t in x).backward()).count == 200

    def test_casts_are_memory_of_their_own(self, saved):
        layer, x = nn.Linear(8, 8, bias=False), torch.ones(2, 8, requires_grad=True)

        def step():
            with torch.autocast("cpu", torch.bfloat16):
                layer(x).sum().backward()

        assert measured(saved, step).bytes == 2 * (x.numel() + layer.weight.numel())


class TestBytes:
    def test_a_tensor_saved_twice_counts_once(self, saved):
        x = torch.ones(8, requires_grad=True)
        reading = measured(saved, lambda: (x * x).sum().backward())
        assert (reading.count, reading.bytes, reading.storage_bytes) == (2, 32, 32)

    def test_a_micro_batch_counts_its_own_part(self, saved):
        batch, layer = torch.ones(8, 4), nn.Linear(4, 4)
        losses = []
        for part, size in ((batch[:2], 32), (batch[2:6], 96), (batch[1:3], 96)):
            reading = measured(saved, lambda part=part: losses.append(layer(part).sum()))
            assert (reading.bytes, reading.storage_bytes) == (size, batch.nbytes)

    def test_projections_that_interleave_share_nothing(self, saved):
        qkv = torch.randn(2, 5, 12, requires_grad=True)

        def step():
            q, k, v = qkv.chunk(3, dim=-1)
            (q * k * v).sum().backward()

        # q, k, v and the product q*k, each 2*5*4 numbers.
        assert measured(saved, step).bytes == 4 * 40 * FLOAT

    def test_sparse_tensors_count_indices_and_values(self, saved):
        matrix = torch.eye(4).to_sparse()
        x = torch.ones(4, 4, requires_grad=True)
        reading = measured(saved, lambda: torch.sparse.mm(matrix, x).sum().backward())
        assert reading.bytes == 2 * 4 * 8 + 4 * FLOAT


class TestPhases:
    def test_forward_end_is_the_largest_of_several_turns(self, saved):
        x = torch.ones(4, requires_grad=True)

        def body():
            for times in (1, 3, 2):
                sum(x.exp().sum() for _ in range(times)).backward()

        reading = measured(saved, body)
        assert reading.at_forward_end == 3 * 16

    def test_what_backward_packs_is_backwards(self, saved):
        x = torch.ones(4, requires_grad=True)

        def body():
            (grad,) = torch.autograd.grad(x.exp().sum(), x, create_graph=True)
            grad.sum().backward()

        reading = measured(saved, body)
        assert reading.at_forward_end == 16
        assert reading.phases["backward"].count > reading.phases["forward"].count

    def test_an_optimizer_step_sees_what_is_still_held(self, saved):
        weight = torch.ones(4, requires_grad=True)
        optimizer = SGD([weight], lr=0.1)

        def body():
            loss = (weight * 2).exp().sum()
            loss.backward(retain_graph=True)
            optimizer.step()
            del loss

        reading = measured(saved, body)
        assert reading.phases["optimizer"].bytes == 16
        assert {"forward", "backward", "optimizer"} == set(reading.phases)

    def test_a_forward_alone_ran_no_backward(self, saved):
        x = torch.ones(4, requires_grad=True)
        reading = measured(saved, x.exp)
        assert (reading.backward, reading.at_forward_end, reading.packs) == (False, 0, 1)

    @pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
    def test_a_backward_for_which_nothing_was_saved_is_told_from_none(self, saved, mode):
        loss = (torch.ones(2, requires_grad=True) + 1).sum()
        with mode():
            empty = measured(saved, lambda: None)
        assert (empty.packs, empty.backward) == (0, False)
        reading = measured(saved, loss.backward)
        assert (reading.packs, reading.backward) == (0, True)


class TestWindows:
    def test_what_was_packed_before_counts_from_the_start(self, saved):
        x = torch.ones(4, requires_grad=True)
        outer = saved.open()
        loss = x.exp().sum()
        inner = saved.open()
        loss.backward()
        inner, outer = saved.close(inner), saved.close(outer)
        assert (inner.bytes, inner.packs, inner.phases["forward"].bytes) == (16, 0, 16)
        assert (outer.bytes, outer.packs) == (16, 1)
        assert inner.at_forward_end == outer.at_forward_end == 16

    def test_an_inner_window_sees_its_own_peak(self, saved):
        x, y = torch.ones(100, requires_grad=True), torch.ones(3, requires_grad=True)
        outer = saved.open()
        x.exp().sum().backward()
        inner = saved.open()
        y.exp().sum().backward()
        assert (saved.close(inner).bytes, saved.close(outer).bytes) == (12, 400)

    def test_inner_windows_are_not_taken_for_backward(self, saved):
        outer = saved.open()
        for _ in range(3):
            assert not saved.close(saved.open()).backward
        assert not saved.close(outer).backward

    def test_a_graph_outlives_the_last_window(self, saved):
        x = torch.ones(4, requires_grad=True)
        losses = []
        measured(saved, lambda: losses.append(x.exp().sum()))
        losses[0].backward()
        assert torch.equal(x.grad, x.exp())
        assert measured(saved, lambda: None).count == 0

    def test_nothing_is_installed_between_windows(self, saved):
        before = [getattr(torch._C._autograd, name) for name in saved._stack._ours]
        start = threading.Thread.start
        measured(saved, lambda: None)
        assert [getattr(torch._C._autograd, name) for name in saved._stack._ours] == before
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        assert threading.Thread.start is start

    def test_a_window_of_many_events_is_the_same(self, saved, monkeypatch):
        monkeypatch.setattr("pytest_shardcheck.instruments.saved_activations._MOST_EVENTS", 3)
        model, x = blocks(4, 8), torch.randn(2, 8)
        assert measured(saved, lambda: model(x).sum().backward()).bytes == 20 * 4 * 2 * 8


class TestLiveMemory:
    def test_storages_are_named_once_held_and_once_released(self, surroundings):
        balance, at_most = {}, 0

        def held(tensor):
            nonlocal at_most
            key = tensor.untyped_storage()._cdata
            balance[key] = balance.get(key, 0) + 1
            at_most = max(at_most, len([n for n in balance.values() if n]))
            return key

        def released(key):
            balance[key] -= 1

        saved = SavedActivations(surroundings, held=held, released=released)
        losses = []
        x = torch.ones(4, requires_grad=True)
        measured(saved, lambda: losses.append((x.exp() * x).sum()))
        assert at_most == 2
        losses.clear()  # after the last window
        assert not any(balance.values())


class TestSemantics:
    def test_a_modification_in_place_is_still_an_error(self, saved):
        x = torch.ones(4, requires_grad=True)

        def step():
            y = x.exp()
            y.add_(1)
            y.sum().backward()

        with pytest.raises(RuntimeError, match=r"modified by an inplace operation: \[torch.Float"):
            step()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
            step()  # what naive hooks make of it: a wrong gradient
        with pytest.raises(RuntimeError, match=r"is at version 1; expected version 0 instead"):
            measured(saved, step)

    def test_an_operation_that_saves_its_output_makes_no_cycle(self, saved):
        gc.collect()
        gc.disable()
        try:
            x = torch.ones(1000, requires_grad=True)
            reading = measured(saved, lambda: x.exp().tanh().relu_().sum())
            assert reading.count > 0
            assert measured(saved, lambda: None).count == 0
        finally:
            gc.enable()

    def test_a_saved_tensor_without_gradient_is_the_same_object(self, saved):
        seen = []

        class Times(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, factor):
                ctx.save_for_backward(factor)
                return x * factor

            @staticmethod
            def backward(ctx, grad):
                seen.extend(ctx.saved_tensors)
                return grad * ctx.saved_tensors[0], None

        factor = torch.full((3,), 2.0)
        x = torch.ones(3, requires_grad=True)
        measured(saved, lambda: Times.apply(x, factor).sum().backward())
        assert seen[0] is factor

    def test_double_backward_is_right(self, saved):
        x = torch.tensor([0.3, 0.7], requires_grad=True)

        def step():
            (first,) = torch.autograd.grad(x.exp().sin().sum(), x, create_graph=True)
            first.sum().backward()

        step()
        expected, x.grad = x.grad, None
        measured(saved, step)
        assert torch.equal(x.grad, expected)

    def test_a_second_backward_says_what_torch_says(self, saved):
        loss = torch.ones(2, requires_grad=True).exp().sum()

        def twice():
            fresh = loss.exp()
            fresh.backward()
            fresh.backward()

        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            measured(saved, twice)

    def test_modes_see_no_operation_of_ours(self, saved):
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        class Operations(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                names.append(str(func))
                return func(*args, **kwargs or {})

        class Functions(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                names.append(str(func))
                return func(*args, **kwargs or {})

        def step():
            with Functions(), Operations():
                x.exp().tanh().sum().backward()

        x = torch.ones(4, requires_grad=True)
        names = []
        step()
        expected, names, x.grad = names, [], None
        measured(saved, step)
        # torch itself detaches: an output that it saves, under hooks what it unpacks.
        ours, without = ([n for n in run if "detach" not in n] for run in (names, expected))
        assert ours == without

    def test_threads_that_start_in_a_window_are_seen(self, saved):
        x = torch.ones(4, requires_grad=True)
        losses = []

        def in_thread():
            thread = threading.Thread(target=lambda: losses.append(x.exp().sum()))
            thread.start()
            thread.join()

        naive = []
        with torch.autograd.graph.saved_tensors_hooks(naive.append, lambda t: t):
            in_thread()
        assert naive == []  # hooks are per thread
        assert measured(saved, in_thread).count == 1

    def test_a_thread_that_outlives_the_last_window_works_on(self, saved):
        go, done = threading.Event(), []

        def late():
            go.wait(60)
            x = torch.ones(2, requires_grad=True)
            (gradient,) = torch.autograd.grad(x.exp().sum(), x)
            done.append(gradient)
            done.append(torch.func.grad(lambda x: x.exp().sum())(torch.ones(2)))

        window = saved.open()
        thread = threading.Thread(target=late)
        thread.start()
        assert saved.close(window).packs == 0
        go.set()
        thread.join()
        assert len(done) == 2
        measured(saved, lambda: None)
        assert saved._stack._theirs == {}

    def test_released_by_another_thread(self, saved):
        losses = []
        x = torch.ones(4, requires_grad=True)
        window = saved.open()
        losses.append(x.exp().sum())
        thread = threading.Thread(target=losses.clear)
        thread.start()
        thread.join()
        inner = saved.close(saved.open())
        assert (inner.count, saved.close(window).count) == (0, 1)
