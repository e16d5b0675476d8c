"""The counter in one process: births, deaths, resizes, views, peaks, and what was alive."""

from __future__ import annotations

import gc
import os
import threading

import pytest
import torch
from counted import Counted
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.optim import SGD, AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


def mebibyte():
    return torch.empty(MIB, dtype=torch.uint8)


class TestPeaks:
    def test_all_freed(self, counted):
        with counted.region() as region:
            held = [mebibyte() for _ in range(4)]
            del held
        assert (region.cpu.growth, region.cpu.peak_above_start) == (0, 4 * MIB)

    def test_one_of_two_freed(self, counted):
        with counted.region() as region:
            held = [mebibyte(), mebibyte()]
            held.pop()
        assert (region.cpu.growth, region.cpu.peak_above_start) == (MIB, 2 * MIB)

    def test_two_in_turn_are_never_two(self, counted):
        with counted.region() as region:
            for _ in range(2):
                mebibyte()
        assert (region.cpu.growth, region.cpu.peak_above_start) == (0, MIB)

    def test_begins_at_what_is_alive(self, counted):
        held = [mebibyte() for _ in range(3)]
        with counted.region() as region:
            held.pop()
            mebibyte()
        assert (region.cpu.start, region.cpu.peak, region.cpu.end) == (3 * MIB, 3 * MIB, 2 * MIB)

    def test_what_was_freed_before_is_not_in_it(self, counted):
        for _ in range(5):
            mebibyte()
        with counted.region() as region:
            mebibyte()
        assert (region.cpu.start, region.cpu.peak) == (0, MIB)

    def test_nested_regions_have_their_own(self, counted):
        with counted.region() as outer:
            held = [mebibyte(), mebibyte()]
            held.clear()
            with counted.region() as inner:
                held = mebibyte()
        assert (outer.cpu.peak, inner.cpu.peak) == (2 * MIB, MIB)
        assert (outer.cpu.start, inner.cpu.start, inner.cpu.end) == (0, 0, MIB)

    def test_inputs_and_outputs_of_an_operator_are_alive_together(self, counted):
        with counted.region() as region:
            (torch.ones(256) + 1).sum()
        assert region.cpu.peak == 2 * 1024

    def test_meta_tensors_have_no_bytes(self, counted):
        with counted.region() as region:
            held = torch.ones(1000, device="meta") + 1
        assert region.cpu.peak == 0
        assert held.shape == (1000,)

    def test_several_devices_are_apart(self, counted):
        with counted.region() as region, FakeTensorMode():
            held = [torch.empty(1000, device="cuda:1"), torch.empty(500), None]
            held[2] = held[1] + 1
            del held
        assert region.by_device["cuda:1"].peak == 4000
        assert region.by_device["cpu"].peak == 4000


class TestStorages:
    """A counter of tensors, of outputs or of operators alone gets each of these wrong."""

    def test_views_count_once(self, counted):
        with counted.region() as region:
            whole = torch.ones(1000)
            views = [whole[:10], whole.view(10, 100), whole.t(), whole.detach(), *whole.split(10)]
        assert region.cpu.end == 4000
        del whole
        with counted.region() as region:
            assert views
        assert region.cpu.end == 4000  # a view keeps all of it

    def test_a_resized_storage_is_followed(self, counted):
        tensor = torch.ones(1000)
        storage = tensor.untyped_storage()
        with counted.region() as region:
            storage.resize_(0)
        assert (region.cpu.start, region.cpu.end) == (4000, 0)
        with counted.region() as region:
            storage.resize_(4000)
            storage.resize_(0)
        assert (region.cpu.start, region.cpu.peak, region.cpu.end) == (0, 4000, 0)

    def test_resizing_operators_are_followed(self, counted):
        with counted.region() as region:
            tensor = torch.ones(10)
            tensor.resize_(1000)
        assert region.cpu.end == 4000
        out = torch.empty(0)
        with counted.region() as region:
            torch.add(torch.ones(500), 1, out=out)
        assert region.cpu.growth == 2000

    def test_inductors_resize_is_followed(self, counted):
        tensor = torch.ones(1000)
        with counted.region() as region:
            torch.ops.inductor.resize_storage_bytes_(tensor, 0)
        assert region.cpu.growth == -4000

    def test_a_storage_older_than_the_counter_joins_when_used(self):
        old = torch.ones(1000)
        counter = Counted()
        counter.start()
        try:
            with counter.region() as region:
                view = old[:10]
            assert (region.cpu.start, region.cpu.end) == (0, 4000)
            assert view.shape == (10,)
        finally:
            counter.stop()

    def test_a_storage_older_than_the_counter_joins_when_watched(self):
        model = nn.Linear(10, 10)
        counter = Counted()
        counter.start()
        try:
            counter.memory.join(model.parameters())
            with counter.region(model) as region:
                pass
            assert (region.cpu.start, region.cpu.end) == (440, 440)
            assert region.cpu.at_peak == {"parameters": 440}
        finally:
            counter.stop()

    def test_sparse_tensors_count_what_they_consist_of(self, counted):
        with counted.region() as region:
            sparse = torch.sparse_coo_tensor(
                torch.tensor([[0, 5]]), torch.ones(2), (10,), check_invariants=False
            )
        assert sparse.layout == torch.sparse_coo
        assert region.cpu.end == 2 * 8 + 2 * 4

    def test_swapped_data(self, counted):
        param = nn.Parameter(torch.ones(1000))
        with counted.region() as region:
            param.data = torch.ones(10)
        assert region.cpu.growth == 40 - 4000

    def test_a_thread_allocates_and_another_frees(self, counted):
        held = []
        with counted.region() as region:
            thread = threading.Thread(target=lambda: held.append(mebibyte()))
            thread.start()
            thread.join()
        assert region.cpu.growth == MIB
        with counted.region() as region:
            thread = threading.Thread(target=held.clear)
            thread.start()
            thread.join()
        assert region.cpu.growth == -MIB

    def test_a_forked_child_is_not_counted(self, counted):
        with counted.region() as region:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    storage = mebibyte().untyped_storage()
                    storage.resize_(10)
                    status = 0 if counted.memory._ledger.clock == 0 else 2
                finally:
                    os._exit(status)
            _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert region.cpu.peak == 0

    def test_an_operator_that_raises_leaves_it_usable(self, counted):
        with counted.region() as region:
            with pytest.raises(RuntimeError, match="size"):
                torch.ones(3) + torch.ones(4)
            held = torch.ones(10)
        assert region.cpu.end == 40
        assert held.shape == (10,)

    def test_everything_is_undone(self):
        resize = torch.UntypedStorage.resize_
        wait = torch.distributed.Work.wait
        start = threading.Thread.start
        counter = Counted()
        counter.start()
        counter.stop()
        assert torch.UntypedStorage.resize_ is resize
        assert "resize_" not in vars(torch.UntypedStorage)
        assert torch.distributed.Work.wait is wait
        assert threading.Thread.start is start

    def test_no_storage_is_kept_alive(self, counted):
        with counted.region() as region:
            gc.disable()
            try:
                for _ in range(3):
                    torch.ones(1000).add(1)
            finally:
                gc.enable()
        assert (region.cpu.peak, region.cpu.end) == (8000, 0)


class TestCategories:
    """What was alive at the peak; the sum is the peak."""

    def train(self, counted, model, optimizer, *, steps=3, clear=False):
        def step():
            batch = torch.ones(4, 16)
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
            if clear:
                optimizer.zero_grad()

        step()
        with counted.region(model, optimizer) as region:
            for _ in range(steps):
                step()
        assert sum(region.cpu.at_peak.values()) == region.cpu.peak
        for live in region.phases.values():
            assert sum(live.at_peak.values()) == live.peak
        return region

    def test_state(self, counted):
        model = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))
        region = self.train(counted, model, AdamW(model.parameters()))
        params = 4 * (16 * 16 + 16 + 16 + 16)
        assert region.cpu.at_peak["parameters"] == params
        assert region.cpu.at_peak["gradients"] == params
        assert region.cpu.at_peak["optimizer state"] == 2 * params + 4 * 4
        assert region.cpu.at_peak["buffers"] == 4 * 32 + 8
        assert region.cpu.at_peak["inputs"] == 4 * 4 * 16

    def test_gradients_that_are_gone_at_the_end(self, counted):
        model = nn.Linear(16, 16, bias=False)
        region = self.train(counted, model, SGD(model.parameters(), lr=0.1), clear=True)
        assert region.phases["optimizer"].at_peak["gradients"] == 4 * 16 * 16
        assert region.phases["backward"].at_peak["gradients"] == 4 * 16 * 16

    def test_an_optimizer_in_a_gradients_hook_makes_no_gradients(self, counted):
        model = nn.Linear(16, 16, bias=False)
        optimizer = AdamW(model.parameters())

        def hook(param):
            optimizer.step()
            optimizer.zero_grad()

        model.weight.register_post_accumulate_grad_hook(hook)
        with counted.region(model, optimizer) as region:
            for _ in range(2):
                model(torch.ones(4, 16)).sum().backward()
        at_peak = region.phases["optimizer"].at_peak
        assert at_peak["gradients"] == 1024
        assert at_peak["optimizer state"] == 2 * 1024 + 4
        assert at_peak["temporaries"] >= 2 * 1024  # the root of the second moment, and its quotient

    def test_saved_at_the_moment_of_the_peak_only(self, counted):
        memory = counted.memory
        saved, other = torch.ones(100), torch.ones(100)
        with counted.region() as region:
            first = memory.mark_saved(saved)
            memory.unmark_saved(memory.mark_saved(other))
            again = memory.mark_saved(saved[:10])
            memory.unmark_saved(first)
            torch.ones(1000)
            memory.unmark_saved(again)
        assert region.cpu.at_peak == {"saved activations": 400, "inputs": 400, "temporaries": 4000}

    def test_many_intervals(self, counted):
        memory = counted.memory
        tensor = torch.ones(100)
        with counted.region() as region:
            for size in (10, 1000, 10):
                for _ in range(50):
                    mark = memory.mark_saved(tensor)
                    torch.ones(size)
                    memory.unmark_saved(mark)
        assert region.cpu.at_peak == {"saved activations": 400, "temporaries": 4000}

    def test_largest_are_folded_and_described(self, counted):
        with counted.region() as region:
            held = [torch.ones(10, 10) for _ in range(3)]
            big = torch.ones(2000, dtype=torch.int16)
        first, second = region.cpu.largest
        assert (first.bytes, first.dtype, first.shape, first.count) == (4000, "int16", (2000,), 1)
        assert (second.bytes, second.shape, second.count) == (400, (10, 10), 3)
        assert second.line.startswith("tests/instruments/test_live_memory.py:")
        assert len(held) == len(big) // 2000 + 2

    def test_no_category_hides_what_is_beside_it(self, counted):
        model = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(12)))
        model(torch.ones(4, 16)).sum().backward()
        with counted.region(model) as region:
            model.zero_grad()
            model(torch.ones(4, 16)).sum().backward()
            held = [torch.ones(16, 12) for _ in range(12)]
        records = [(record.category, record.count) for record in region.cpu.largest]
        # Twelve parameters were made on one line; each gradient is another module's.
        assert records == [("parameters", 12), *[("gradients", 1)] * 8, ("temporaries", 12)]
        assert len(held) == 12

    def test_modules_have_names(self, counted):
        model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16))
        region = self.train(counted, model, SGD(model.parameters(), lr=0.1))
        assert {record.module for record in region.cpu.largest} >= {"0", "1"}


class TestCrossings:
    def test_the_first_is_kept(self, counted):
        held = []
        with counted.region(ceilings={"cpu": 1000}) as region:
            for size in (100, 100, 300, 400):
                held.append(torch.ones(size))  # noqa: PERF401
        crossing = region.cpu.first_crossing
        assert (crossing.ceiling, crossing.live) == (1000, 2000)
        assert crossing.operator == "aten.ones.default"
        assert (crossing.module, crossing.phase) == ("", "forward")
        assert crossing.line.startswith("tests/instruments/test_live_memory.py:")

    def test_at_the_ceiling_is_no_crossing(self, counted):
        with counted.region(ceilings={"cpu": 400}) as region:
            torch.ones(100)
        assert region.cpu.first_crossing is None

    def test_one_byte_above(self, counted):
        with counted.region(ceilings={"cpu": 399}) as region:
            torch.ones(100)
        assert region.cpu.first_crossing.live == 400

    def test_a_region_that_begins_above(self, counted):
        held = torch.ones(100)
        with counted.region(ceilings={"cpu": 100}) as region:
            held.add_(1)
        crossing = region.cpu.first_crossing
        assert (crossing.live, crossing.operator) == (400, "")

    def test_any_device_of_a_kind(self, counted):
        with counted.region(ceilings={"cuda": 100}) as region, FakeTensorMode():
            torch.empty(1000, device="cuda:1")
        assert region.by_device["cuda:1"].first_crossing.live == 4000

    def test_where_it_is_in_backward(self, counted):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1000))
        batch = torch.ones(2, 4)
        with counted.region(model) as region:
            model(batch).sum().backward()
        model.zero_grad()
        # The second layer's gradients come first, and are larger than what forward had.
        with counted.region(model, ceilings={"cpu": region.phases["forward"].peak}) as region:
            model(batch).sum().backward()
        crossing = region.cpu.first_crossing
        assert (crossing.phase, crossing.module) == ("backward", "1")
        assert crossing.operator == "aten.mm.default"


class TestGrowth:
    def test_a_list_of_losses(self, counted):
        model = nn.Linear(16, 16)
        optimizer = SGD(model.parameters(), lr=0.1)
        losses = []

        def step():
            optimizer.zero_grad()
            loss = model(torch.ones(4, 16)).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

        step()
        with counted.region(model, optimizer) as region:
            for _ in range(3):
                step()
        assert region.cpu.growth == 3 * 4
        [record] = region.cpu.grown
        assert (record.bytes, record.count, record.category) == (4, 3, "temporaries")
        assert record.shape == ()

    def test_a_copy_of_each_gradient_is_told_from_the_gradient(self, counted):
        model = nn.Linear(16, 16, bias=False)
        kept = []

        def step():
            model.zero_grad()
            model(torch.ones(4, 16)).sum().backward()
            kept.append(model.weight.grad.clone())

        step()
        with counted.region(model) as region:
            step()
            step()
        [record] = region.cpu.grown
        assert (record.bytes, record.count, record.category) == (1024, 2, "temporaries")

    def test_a_leak_that_something_freed_hides(self, counted):
        freed = [torch.ones(1000)]
        with counted.region() as region:
            freed.clear()
            leaked = torch.ones(10)
        assert region.cpu.growth == 40 - 4000
        assert [record.bytes for record in region.cpu.grown] == [leaked.nbytes]

    def test_a_steady_step_grows_by_nothing(self, counted):
        model = nn.Linear(16, 16)
        optimizer = AdamW(model.parameters())

        def step():
            optimizer.zero_grad()
            model(torch.ones(4, 16)).sum().backward()
            optimizer.step()

        step()
        with counted.region(model, optimizer) as region:
            step()
        assert (region.cpu.growth, region.cpu.grown) == (0, ())


class TestPhases:
    def test_each_has_its_own_record(self, counted):
        model = nn.Linear(64, 64, bias=False)
        optimizer = AdamW(model.parameters())
        with counted.region(model, optimizer) as region:
            loss = model(torch.ones(2, 64)).sum()
            loss.backward()
            optimizer.step()
        whole, phases = region.cpu, region.phases
        assert list(phases) == ["forward", "backward", "optimizer"]
        assert max(live.peak for live in phases.values()) == whole.peak
        assert phases["forward"].start == whole.start
        assert phases["backward"].start == phases["forward"].end
        assert phases["optimizer"].end == whole.end

    def test_the_first_moment_counts_without_an_allocation(self, counted):
        model = nn.Linear(64, 64)
        loss = model(torch.ones(2, 64)).sum()
        with counted.region(model) as region:
            loss.backward()
        assert region.phases["backward"].peak >= region.phases["forward"].end


def test_checkpointing_lowers_the_end_of_forward_and_not_the_recomputation(counted):
    blocks = nn.ModuleList(
        nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)
    )

    def run(*, saving):
        value = torch.ones(4, 8)
        for block in blocks:
            value = checkpoint(block, value, use_reentrant=False) if saving else block(value)
        return value.sum()

    ends = {}
    for saving in (False, True):
        blocks.zero_grad()
        with counted.region(blocks) as region:
            run(saving=saving).backward()
        ends[saving] = region.phases["forward"].end
        assert region.phases["backward"].start == ends[saving]
    # Each block keeps its input, and gives up what its two inner layers gave: 2 x 4 x 32 x 4 B.
    assert ends[False] - ends[True] == 3 * 2 * 512


def test_user_hooks_inside_a_checkpoint_do_not_leak(counted):
    layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def body(value):
        value = layers[0](value)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            value = layers[1](value)
        return layers[2](value)

    def step():
        layers.zero_grad()
        checkpoint(
            body, torch.ones(4, 16, requires_grad=True), use_reentrant=False
        ).sum().backward()

    step()
    with counted.region(layers) as region:
        for _ in range(5):
            step()
    assert region.cpu.growth == 0


def test_a_mode_of_the_user_above_ours_changes_nothing(counted):
    class Above(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with counted.region() as region, Above():
        held = torch.ones(100) + 1
    assert (region.cpu.peak, region.cpu.end) == (800, held.nbytes)


def test_what_is_left_behind_says_in_which_step(counted) -> None:
    model, kept = nn.Linear(4, 4), []
    optimizer = SGD(model.parameters(), lr=0.1)
    with counted.region(model, optimizer) as region:
        for step in range(1, 5):
            model.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            if step in (2, 4):
                kept.append(torch.empty(1000))
            optimizer.step()
    (left,) = [record for record in region.cpu.grown if record.bytes == 4000]
    assert (left.count, left.steps) == (2, (2, 4))
