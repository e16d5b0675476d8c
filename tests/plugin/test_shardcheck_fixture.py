"""The fixture ``shardcheck`` in real worlds: measure, start, watch, stop, check, gather.

One inner session holds all the inner tests; each test here looks at one of them. What an inner
test can assert itself, it does.
"""

from __future__ import annotations

import re

import pytest

KIT = """
    import torch

    P = 64 * 64 * 4  # 16,384 bytes: the parameters, their gradients, or the momentum
    BUFFER = 400
    STATE = 3 * P + BUFFER  # 49,552 bytes

    def build(width=1):
        model = torch.nn.Linear(64 * width, 64, bias=False)
        model.register_buffer("scale", torch.ones(100))
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(1, model.in_features)).sum().backward()
        optimizer.step()

    def run(shardcheck, width=1, region="step"):
        model, optimizer = build(width)
        step(model, optimizer)
        with shardcheck.measure(model, optimizer, region=region) as measurement:
            step(model, optimizer)
        return measurement
"""

MEASURE = """
    from types import SimpleNamespace

    import pytest
    import torch
    from kit import BUFFER, P, STATE, build, run, step
    from pytest_shardcheck import UsageError

    pytestmark = pytest.mark.world_size(2)

    def test_values(shardcheck, world):
        reading = run(shardcheck, width=1 + world.rank)
        wide = P * (1 + world.rank)
        memory = reading.memory
        assert (memory.params, memory.grads, memory.optimizer) == (wide, wide, wide)
        assert (memory.buffers, memory.state) == (BUFFER, 3 * wide + BUFFER)
        assert (reading.rank, reading.region, reading.occurrence) == (world.rank, "step", 0)
        assert reading.outermost
        assert not reading.implicit
        assert reading.reading.memory == memory

    def test_a_reading_is_frozen(shardcheck):
        reading = run(shardcheck).reading
        with pytest.raises(AttributeError):
            reading.region = "other"
        with pytest.raises(AttributeError):
            reading.memory.device = "cuda"

    def test_a_reading_is_of_the_end_of_its_block(shardcheck):
        model, optimizer = build()
        with shardcheck.measure(model, optimizer) as reading:
            pass
        step(model, optimizer)
        assert reading.memory.grads == reading.memory.optimizer == 0

    def test_gradients_are_those_at_the_entry_of_the_step(shardcheck):
        model, optimizer = build()
        with shardcheck.measure(model, optimizer) as reading:
            step(model, optimizer)
            optimizer.zero_grad()
        assert reading.memory.grads == P

    def test_what_was_not_watched_is_none(shardcheck):
        model, optimizer = build()
        with shardcheck.measure(model) as of_model:
            step(model, optimizer)
        with shardcheck.measure(optimizer) as of_optimizer:
            pass
        with shardcheck.measure() as of_nothing:
            pass
        assert of_model.memory.optimizer is None
        assert of_model.memory.grads == P
        assert of_optimizer.memory.optimizer == P
        assert of_optimizer.memory.params is None
        assert of_optimizer.memory.grads is None
        assert of_optimizer.memory.buffers is None
        assert of_nothing.memory.state is None

    def test_reading_an_open_block_raises(shardcheck):
        names = ["memory", "reading", "rank", "occurrence"]
        with shardcheck.measure(build()[0], region="train") as reading:
            for name in names:
                with pytest.raises(UsageError, match="'train': it is still open.*after its block"):
                    getattr(reading, name)
        for name in names:
            getattr(reading, name)

    def test_reading_a_block_that_was_never_entered_raises(shardcheck):
        with pytest.raises(UsageError, match="'step': it was never entered: write `with"):
            shardcheck.measure(build()[0]).memory

    def test_reading_a_started_region_raises(shardcheck):
        reading = shardcheck.start(build()[0])
        with pytest.raises(UsageError, match=r"still open.*stop\\(\\)"):
            reading.memory
        shardcheck.stop()
        assert reading.memory.params == P

    def test_an_exception_inside_a_region(shardcheck):
        with pytest.raises(ValueError, match="boom"):
            with shardcheck.measure(build()[0]) as reading:
                raise ValueError("boom")
        with pytest.raises(UsageError, match="ended by an exception, so nothing was measured"):
            reading.memory
        assert run(shardcheck).memory.params == P  # the next one is measured
        assert run(shardcheck).outermost

    def test_an_exception_inside_a_nested_region(shardcheck):
        model = build()[0]
        with shardcheck.measure(model) as outer:
            with pytest.raises(ValueError):
                with shardcheck.measure(model, region="inner"):
                    shardcheck.start(model, region="innermost")
                    raise ValueError("boom")
        assert outer.memory.params == P

    def test_a_measurement_can_be_entered_once(shardcheck):
        measurement = shardcheck.measure(build()[0])
        with measurement:
            with pytest.raises(UsageError, match="opened before"):
                measurement.__enter__()
        with pytest.raises(UsageError, match="opened before; call measure"):
            with measurement:
                pass

    def test_nested_regions(shardcheck):
        (small, _), (large, _) = build(1), build(2)
        with shardcheck.measure(small, region="outer") as outer:
            with shardcheck.measure(large, region="inner") as inner:
                with shardcheck.measure(small, large, region="innermost") as innermost:
                    pass
            assert inner.memory.params == 2 * P  # readable, while the outer one is open
        assert (outer.memory.params, innermost.memory.params) == (P, 3 * P)
        assert (outer.outermost, inner.outermost, innermost.outermost) == (True, False, False)

    def test_repeated_regions(shardcheck):
        readings = [run(shardcheck, width) for width in (1, 3, 2)]
        other = run(shardcheck, region="other")
        assert [reading.occurrence for reading in readings] == [0, 1, 2]
        assert [reading.memory.params for reading in readings] == [P, 3 * P, 2 * P]
        assert (other.region, other.occurrence) == ("other", 0)

    def test_a_region_needs_a_name(shardcheck):
        for name in ("", None, 5):
            with pytest.raises(UsageError, match="expected a name, such as region='step'"):
                shardcheck.measure(build()[0], region=name)

    def test_named_parts(shardcheck):
        (encoder, first), (decoder, second) = build(1), build(2)
        step(encoder, first)
        with shardcheck.measure(first, second, encoder=encoder, decoder=decoder) as reading:
            step(decoder, second)
        parts = reading.memory.parts
        assert list(parts) == ["encoder", "decoder"]
        assert (parts["encoder"].params, parts["encoder"].grads) == (P, P)
        assert (parts["decoder"].params, parts["decoder"].buffers) == (2 * P, BUFFER)
        assert parts["encoder"].optimizer is None
        assert (reading.memory.params, reading.memory.optimizer) == (3 * P, 3 * P)

    def test_a_named_optimizer_has_its_subtotal(shardcheck):
        model, optimizer = build()
        step(model, optimizer)
        with shardcheck.measure(model=model, optimizer=optimizer) as reading:
            pass
        assert reading.memory.parts["optimizer"].optimizer == P
        assert reading.memory.parts["model"].params == P
        assert reading.memory.state == STATE

    def test_what_is_watched_twice_counts_once(shardcheck):
        model, optimizer = build()
        step(model, optimizer)
        things = [model, optimizer, [model, {"same": model}]]
        with shardcheck.measure(*things, again=model, other=optimizer) as reading:
            pass
        assert reading.memory.state == STATE

    WRAPPED = {
        "tuple": lambda model, optimizer: (model, optimizer),
        "nested lists": lambda model, optimizer: [[model], [[optimizer]]],
        "mapping": lambda model, optimizer: {"m": model, "o": [optimizer]},
        "trainer": lambda model, optimizer: SimpleNamespace(model=model, optimizer=optimizer),
        "engine": lambda model, optimizer: SimpleNamespace(module=model, optimizers=[optimizer]),
        "stage and wrapped optimizer": lambda model, optimizer: [
            SimpleNamespace(submod=model), SimpleNamespace(optim=optimizer)
        ],
    }

    def test_containers_are_opened(shardcheck):
        model, optimizer = build()
        step(model, optimizer)
        sizes = {}
        for name, wrap in WRAPPED.items():
            with shardcheck.measure(wrap(model, optimizer), region=name) as reading:
                pass
            memory = reading.memory
            sizes[name] = (memory.params, memory.grads, memory.optimizer, memory.buffers)
        assert sizes == dict.fromkeys(WRAPPED, (P, P, P, BUFFER))

    def test_wrappers_are_opened(shardcheck, process_group):
        # Imported here: it scripts its optimizers, for which the session would have to wait too.
        from torch.distributed.optim import ZeroRedundancyOptimizer
        from torch.nn.parallel import DistributedDataParallel

        layers = [torch.nn.Linear(64, 64, bias=False) for _ in range(2)]
        model = DistributedDataParallel(torch.nn.Sequential(*layers))
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9
        )
        model(torch.ones(1, 64)).sum().backward()
        optimizer.step()
        with shardcheck.measure(model, optimizer) as reading:
            pass
        memory = reading.memory
        assert (memory.params, memory.grads, memory.optimizer) == (2 * P, 2 * P, P)

    def test_a_trainers_optimizer_may_come_later(shardcheck):
        trainer = SimpleNamespace(model=build()[0], optimizer=None)
        with shardcheck.measure(trainer) as reading:
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.1, momentum=0.9)
            step(trainer.model, trainer.optimizer)
        assert reading.memory.state == STATE

    def test_parameters_of_a_generator(shardcheck):
        with shardcheck.measure(build()[0].parameters()) as reading:
            pass
        assert reading.memory.params == P

    def test_what_can_not_be_watched(shardcheck):
        refused = "can't watch .*expected a module, an optimizer"
        for call in (shardcheck.measure, shardcheck.start, shardcheck.watch):
            for thing in (5, "model", None, object()):
                with pytest.raises(UsageError, match=refused):
                    call(thing)
                with pytest.raises(UsageError, match=refused):
                    call(part=[thing])
        with pytest.raises(UsageError, match="without start"):
            shardcheck.stop()  # a refused start opened nothing

    def test_a_usage_error(shardcheck):
        shardcheck.stop()

    def test_the_fixture_may_be_asked_for_in_the_body(request):
        shardcheck = request.getfixturevalue("shardcheck")
        assert run(shardcheck).memory.state == STATE
"""

START = """
    import pytest
    import torch
    from kit import BUFFER, P, STATE, build, run, step
    from pytest_shardcheck import UsageError

    pytestmark = pytest.mark.world_size(2)

    def test_start_watch_stop(shardcheck, world):
        shardcheck.start(region="train")
        model, optimizer = build()
        shardcheck.watch(model)
        shardcheck.watch(optimizer=optimizer)
        step(model, optimizer)
        reading = shardcheck.stop()
        assert (reading.region, reading.rank, reading.outermost) == ("train", world.rank, True)
        assert reading.memory.state == STATE
        assert reading.memory.parts["optimizer"].optimizer == P

    def test_start_and_stop_hand_out_the_same_reading(shardcheck):
        started = shardcheck.start(build())
        stopped = shardcheck.stop()
        assert started.reading is stopped.reading

    def test_stop_ends_the_last_start(shardcheck):
        (small, _), (large, _) = build(1), build(2)
        shardcheck.start(small, region="outer")
        shardcheck.start(large, region="inner")
        inner, outer = shardcheck.stop(), shardcheck.stop()
        assert (inner.region, inner.memory.params, inner.outermost) == ("inner", 2 * P, False)
        assert (outer.region, outer.memory.params, outer.outermost) == ("outer", P, True)

    def test_a_block_inside_a_started_region(shardcheck):
        model = build()[0]
        shardcheck.start(model, region="outer")
        with shardcheck.measure(model, region="inner") as inner:
            pass
        assert not inner.outermost
        assert shardcheck.stop().region == "outer"

    def test_stop_without_start(shardcheck):
        with pytest.raises(UsageError, match=r"no region is open; call start\\(\\) first"):
            shardcheck.stop()
        shardcheck.start(build())
        shardcheck.stop()
        with pytest.raises(UsageError, match=r"no region is open; call start\\(\\) first"):
            shardcheck.stop()

    def test_stop_inside_a_block(shardcheck):
        with shardcheck.measure(build()[0]) as reading:
            with pytest.raises(UsageError, match="`with` block of region 'step'.*after the block"):
                shardcheck.stop()
        assert reading.memory.params == P

    def test_a_block_that_ends_before_what_was_started_inside(shardcheck):
        with pytest.raises(UsageError, match="'outer' ended while region 'inner' inside it"):
            with shardcheck.measure(region="outer"):
                shardcheck.start(region="inner")
        assert run(shardcheck).outermost

    def test_watched_outside_any_region_is_watched_in_all(shardcheck):
        (small, _), (large, _) = build(1), build(2)
        shardcheck.watch(small)
        with shardcheck.measure() as first:
            pass
        with shardcheck.measure(large, region="second") as second:
            pass
        assert (first.memory.params, second.memory.params) == (P, 3 * P)

    def test_watched_in_a_region_is_watched_there_alone(shardcheck):
        (small, _), (large, _) = build(1), build(2)
        with shardcheck.measure(small, region="outer") as outer:
            with shardcheck.measure(region="inner") as inner:
                shardcheck.watch(large)
        with shardcheck.measure(region="next") as later:
            pass
        assert (outer.memory.params, inner.memory.params) == (P, 2 * P)
        assert later.memory.params is None

    @pytest.fixture
    def started(shardcheck):
        shardcheck.start(build(2)[0], region="setup")

    def test_started_in_setup_and_stopped_in_the_body(started, shardcheck):
        assert shardcheck.stop().memory.params == 2 * P

    @pytest.fixture
    def too_late(shardcheck):
        yield
        with pytest.raises(UsageError, match="the test has ended"):
            run(shardcheck)
        print("too late, as it says")

    def test_no_region_opens_in_teardown(too_late):
        pass
"""

CHECK = """
    import re

    import pytest
    from kit import P, STATE, build, run, step
    from pytest_shardcheck import UnmetExpectationError, UsageError, max_memory, memory

    pytestmark = pytest.mark.world_size(2)

    def test_met(shardcheck):
        shardcheck.check(run(shardcheck), max_memory(state=STATE), memory(params=P, grads=P))

    def test_unmet(shardcheck):
        shardcheck.check(run(shardcheck), max_memory(state=40_000))

    def test_unmet_on_one_rank(shardcheck, world):
        shardcheck.check(run(shardcheck, width=1 + world.rank), max_memory(params=P))

    def test_narrowed_to_one_rank(shardcheck):
        shardcheck.check(run(shardcheck), memory(params=1, rank=-1))

    def test_each_rank_its_own_value(shardcheck, world):
        reading = run(shardcheck, width=1 + world.rank)
        shardcheck.check(reading, memory(params=P, rank=0), memory(params=2 * P, rank=1))

    def test_all_unmet_are_shown(shardcheck):
        shardcheck.check(
            run(shardcheck), max_memory(params=P - 1, grads=P), memory(optimizer=P + 1)
        )

    @pytest.mark.max_memory(params=P - 1)
    def test_a_check_does_not_replace_the_marker(shardcheck):
        shardcheck.check(run(shardcheck), max_memory(params=P))

    @pytest.mark.max_memory(params=P)
    def test_the_marker_does_not_replace_a_check(shardcheck):
        shardcheck.check(run(shardcheck), max_memory(params=P - 1))

    def test_values_of_all_kinds(shardcheck, world):
        reading = run(shardcheck)
        for value in (P, "16 KiB", {2: P, 4: 1}, lambda world: world.size * P // 2):
            shardcheck.check(reading, memory(params=value))
        with pytest.raises(UnmetExpectationError, match="the ceiling of 8,192 B"):
            shardcheck.check(reading, max_memory(params=lambda world: P // world.size))
        with pytest.raises(UsageError, match="no value for world size 2"):
            shardcheck.check(reading, max_memory(params={4: P}))

    def test_tolerance(shardcheck):
        reading = run(shardcheck)
        shardcheck.check(reading, memory(params=P + 5, tolerance=5))
        with pytest.raises(UnmetExpectationError, match="± 5 B"):
            shardcheck.check(reading, memory(params=P + 6, tolerance=5))

    @pytest.mark.world_size(1, 2)
    def test_only_where_it_holds(shardcheck, world):
        reading = run(shardcheck)
        shardcheck.check(reading, memory(params=1 if world.size == 1 else P, world_size=2))
        with pytest.raises(UsageError, match="the test runs at world size 1, 2 and never there"):
            shardcheck.check(reading, memory(params=1, world_size=4))
        with pytest.raises(UnmetExpectationError, match="rank 2 is not in this world"):
            shardcheck.check(reading, memory(params=P, rank=2))

    def test_an_unmet_expectation_is_an_assertion_error(shardcheck):
        with pytest.raises(AssertionError) as caught:
            shardcheck.check(run(shardcheck), max_memory(params=1))
        assert caught.type is UnmetExpectationError

    def test_the_ceiling_that_is_printed_passes(shardcheck):
        for width in (1, 3, 7, 64):
            reading = run(shardcheck, width)
            for argument in ("params", "grads", "optimizer", "buffers", "state"):
                size = getattr(reading.memory, argument)
                with pytest.raises(UnmetExpectationError) as caught:
                    shardcheck.check(reading, max_memory(**{argument: size - 1}))
                ceiling = re.search(rf'{argument}="(.+)"', str(caught.value))[1]
                shardcheck.check(reading, max_memory(**{argument: ceiling}))

    def test_the_exact_value_that_is_printed_passes(shardcheck):
        reading = run(shardcheck)
        with pytest.raises(UnmetExpectationError) as caught:
            shardcheck.check(reading, memory(state=1))
        value = re.search(r"passes at world size 2: state=([0-9_]+)$", str(caught.value))[1]
        shardcheck.check(reading, memory(state=int(value)))

    def test_a_nested_region_is_checked(shardcheck):
        small, large = build(1)[0], build(2)[0]
        with shardcheck.measure(small):
            with shardcheck.measure(large, region="inner") as inner:
                pass
        shardcheck.check(inner, memory(params=2 * P), memory(params=2 * P, region="inner"))
        with pytest.raises(UnmetExpectationError, match="in region 'inner'"):
            shardcheck.check(inner, max_memory(params=P))

    def test_a_narrowing_must_match(shardcheck):
        reading = run(shardcheck)
        with pytest.raises(UnmetExpectationError, match="no region 'stpe' .did you mean 'step'"):
            shardcheck.check(reading, max_memory(params=P, region="stpe"))
        with pytest.raises(UnmetExpectationError, match="rank 2 is not in this world"):
            shardcheck.check(reading, max_memory(params=P, rank=2))

    def test_unwatched_is_unmeasured(shardcheck):
        model, optimizer = build()
        with shardcheck.measure(model) as reading:
            step(model, optimizer)
        shardcheck.check(reading, memory(params=P, grads=P))
        with pytest.raises(UnmetExpectationError, match="no optimizer was watched"):
            shardcheck.check(reading, max_memory(state="1 TB"))

    def test_zeros_are_unmeasured(shardcheck):
        with shardcheck.measure(build()) as reading:
            pass
        shardcheck.check(reading, max_memory(grads=0), memory(optimizer=0))
        with pytest.raises(UnmetExpectationError, match="write grads=0 to mean zero"):
            shardcheck.check(reading, max_memory(grads=P))

    def test_no_expectation(shardcheck):
        with pytest.raises(UsageError, match=r"expectation.*max_memory\\(state"):
            shardcheck.check(run(shardcheck))

    def test_an_open_block(shardcheck):
        with shardcheck.measure(build()) as reading:
            with pytest.raises(UsageError, match="still open"):
                shardcheck.check(reading, max_memory(params=P))
        shardcheck.check(reading, max_memory(params=P))

    def test_a_block_that_an_exception_ended(shardcheck):
        with pytest.raises(ValueError):
            with shardcheck.measure(build()) as reading:
                raise ValueError("boom")
        with pytest.raises(UsageError, match="ended by an exception"):
            shardcheck.check(reading, max_memory(params=P))

    def test_a_misspelt_argument(shardcheck):
        reading = run(shardcheck)
        with pytest.raises(UsageError, match="shardcheck.check: max_memory.*did you mean 'params'"):
            shardcheck.check(reading, max_memory(parms=P))

    def test_what_is_no_reading(shardcheck):
        for given in (None, 5, "step", {"params": P}):
            with pytest.raises(UsageError, match="reading"):
                shardcheck.check(given, max_memory(params=P))
            with pytest.raises(UsageError, match="reading"):
                shardcheck.gather(given)

    def test_what_is_no_expectation(shardcheck):
        for given in (None, 5, {"params": P}, pytest.mark.max_memory(params=P)):
            with pytest.raises(UsageError, match="expectation"):
                shardcheck.check(run(shardcheck), given)

    def test_arguments_in_the_wrong_order(shardcheck):
        with pytest.raises(UsageError, match="reading"):
            shardcheck.check(max_memory(params=P), run(shardcheck))

    def test_the_memory_alone_is_no_reading(shardcheck):
        with pytest.raises(UsageError, match="reading"):
            shardcheck.check(run(shardcheck).memory, max_memory(params=P))
"""

GATHER = """
    import os
    import signal

    import pytest
    import torch
    import torch.distributed as dist
    from kit import P, build, run, step
    from pytest_shardcheck import UnmetExpectationError, UsageError, max_memory
    from pytest_shardcheck.instruments import c10d_tap

    TWO = pytest.mark.world_size(2)

    @pytest.mark.world_size(2, 4)
    def test_all_readings_ordered_by_rank(shardcheck, world):
        own = run(shardcheck, width=1 + world.rank)
        readings = shardcheck.gather(own)
        assert isinstance(readings, list)
        assert [reading.rank for reading in readings] == list(range(world.size))
        expected = [P * (1 + rank) for rank in range(world.size)]
        assert [reading.memory.params for reading in readings] == expected
        assert readings[world.rank] == own.reading

    @TWO
    def test_parts_names_and_none_survive(shardcheck, world):
        run(shardcheck, region="train")
        with shardcheck.measure(build()[0], region="outer"):
            with shardcheck.measure(region="train", model=build(1 + world.rank)[0]) as own:
                pass
        readings = shardcheck.gather(own)
        assert readings[world.rank] == own.reading
        assert [reading.memory.parts["model"].params for reading in readings] == [P, 2 * P]
        for reading in readings:
            assert (reading.region, reading.occurrence, reading.outermost) == ("train", 1, False)
            assert reading.memory.optimizer is None

    @TWO
    def test_a_frozen_reading_is_gathered(shardcheck, world):
        own = run(shardcheck).reading
        assert shardcheck.gather(own)[world.rank] == own
        others = shardcheck.gather(shardcheck.gather(own)[0])
        assert [reading.rank for reading in others] == [0, 0]

    @TWO
    def test_twice(shardcheck, world):
        first = shardcheck.gather(run(shardcheck, width=1 + world.rank))
        second = shardcheck.gather(run(shardcheck, width=3 + world.rank, region="other"))
        assert [reading.memory.params for reading in first] == [P, 2 * P]
        assert [reading.memory.params for reading in second] == [3 * P, 4 * P]
        assert {reading.region for reading in second} == {"other"}

    @TWO
    def test_many_times(shardcheck, world):
        own = run(shardcheck, width=1 + world.rank)
        for _ in range(50):
            assert [r.memory.params for r in shardcheck.gather(own)] == [P, 2 * P]

    @TWO
    def test_long_readings(shardcheck, world):
        model = build()[0]
        with shardcheck.measure(**{f"part_{i}": model for i in range(2000)}) as own:
            pass
        for reading in shardcheck.gather(own):
            assert len(reading.memory.parts) == 2000

    class Calls(list):
        def issued(self, call):
            self.append(call.operator)

        def returned(self, token, result):
            pass

        def failed(self, token):
            pass

    @TWO
    def test_no_collective_is_issued(shardcheck, process_group):
        own = run(shardcheck)
        calls = Calls()
        c10d_tap.listen(calls)
        shardcheck.gather(own)
        assert calls == []
        dist.all_reduce(torch.ones(1))
        assert calls == ["allreduce_"], "the tap counts, so that the zero above means something"

    @TWO
    def test_no_process_group_is_needed(shardcheck):
        shardcheck.gather(run(shardcheck))
        assert not dist.is_initialized()

    @TWO
    def test_while_a_region_is_open(shardcheck):
        own = run(shardcheck)
        with shardcheck.measure(build()[0]) as outer:
            assert len(shardcheck.gather(own)) == 2
        assert outer.memory.params == P

    @pytest.fixture
    def gathered_in_setup(shardcheck, world):
        return shardcheck.gather(run(shardcheck, width=1 + world.rank))

    @TWO
    def test_in_setup(gathered_in_setup):
        assert [reading.memory.params for reading in gathered_in_setup] == [P, 2 * P]

    @pytest.fixture
    def gathers_in_teardown(shardcheck, world):
        own = run(shardcheck, width=1 + world.rank)
        yield
        assert [reading.memory.params for reading in shardcheck.gather(own)] == [P, 2 * P]
        assert world.size == 2

    @TWO
    def test_in_teardown(gathers_in_teardown):
        pass

    @TWO
    def test_what_was_gathered_can_be_checked(shardcheck, world):
        readings = shardcheck.gather(run(shardcheck, width=1 + world.rank))
        shardcheck.check(readings[0], max_memory(params=P))
        with pytest.raises(UnmetExpectationError, match="rank 1: 32,768 B"):
            shardcheck.check(readings[1], max_memory(params=P))

    @TWO
    def test_an_open_block(shardcheck):
        with shardcheck.measure(build()[0]) as own:
            with pytest.raises(UsageError, match="still open"):
                shardcheck.gather(own)
        assert len(shardcheck.gather(own)) == 2

    @TWO
    def test_on_one_rank_only(shardcheck, world):
        own = run(shardcheck)
        if world.rank == 0:
            shardcheck.gather(own)

    @pytest.mark.world_size(4)
    def test_on_two_ranks_of_four(shardcheck, world):
        own = run(shardcheck)
        if world.rank in (1, 3):
            shardcheck.gather(own)

    @TWO
    def test_once_more_on_one_rank(shardcheck, world):
        own = run(shardcheck)
        for _ in range(1 + world.rank):
            shardcheck.gather(own)

    @TWO
    def test_a_peer_raises(shardcheck, world):
        own = run(shardcheck)
        if world.rank == 1:
            raise ValueError("boom")
        shardcheck.gather(own)

    @TWO
    def test_a_peer_dies(shardcheck, world):
        own = run(shardcheck)
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        shardcheck.gather(own)

    @pytest.mark.world_size(2, timeout=2)
    def test_a_peer_waits_in_a_barrier(shardcheck, process_group, world):
        own = run(shardcheck)
        if world.rank == 1:
            dist.barrier()
        shardcheck.gather(own)

    @TWO
    def test_a_peer_fails_and_both_gather_in_teardown(gathers_in_teardown, world):
        if world.rank == 1:
            raise ValueError("boom")

    @TWO
    def test_the_next_world_gathers(shardcheck):
        assert len(shardcheck.gather(run(shardcheck))) == 2
"""

FILES = {
    "kit.py": KIT,
    "test_measure.py": MEASURE,
    "test_start.py": START,
    "test_check.py": CHECK,
    "test_gather.py": GATHER,
}

MUST_FAIL = {
    "test_unmet",
    "test_unmet_on_one_rank",
    "test_narrowed_to_one_rank",
    "test_all_unmet_are_shown",
    "test_a_check_does_not_replace_the_marker",
    "test_the_marker_does_not_replace_a_check",
    "test_a_usage_error",
    "test_on_one_rank_only",
    "test_on_two_ranks_of_four",
    "test_once_more_on_one_rank",
    "test_a_peer_raises",
    "test_a_peer_dies",
    "test_a_peer_waits_in_a_barrier",
    "test_a_peer_fails_and_both_gather_in_teardown",
}
ALL = [
    (file, name)
    for file, text in FILES.items()
    for name in re.findall(r"^    def (test_\w+)\(", text, re.MULTILINE)
]


@pytest.fixture(scope="module")
def session(run_session):
    """Run all of them; the tests below look at its parts."""
    return run_session(FILES, "-rA")


@pytest.mark.parametrize(("file", "name"), [(f, n) for f, n in ALL if n not in MUST_FAIL])
def test_inner(session, file, name):
    """The inner test passes at every world and parameter."""
    found = re.findall(rf"^(\w+) {re.escape(file)}::({name}\[\S+)", session.out, re.MULTILINE)
    assert found, f"{name} did not run:\n{session.out[-2000:]}"
    for word, full_name in found:
        assert word == "PASSED", session.failure(full_name)


def test_all_that_must_fail_do_and_nothing_errs(session):
    names = {name for name, words in session.results.items() if words != ["PASSED"]}
    assert {name.partition("[")[0] for name in names} >= MUST_FAIL
    assert session.outcomes.get("errors", 0) == 0


@pytest.mark.parametrize("size", [2, 4])
def test_readings_are_gathered_at_both_sizes(session, size):
    name = f"test_all_readings_ordered_by_rank[world{size}]"
    assert session.results[name] == ["PASSED"]


def test_a_failed_check_says_all_that_the_marker_says(session):
    text = session.failure("test_unmet[world2]")
    message = [line.removeprefix("E").strip() for line in text.splitlines() if line[:1] == "E"]
    head, *rest = message
    assert head.endswith(
        "UnmetExpectationError: max_memory(state): the ceiling of 40,000 B (40.0 kB) was crossed "
        "in region 'step' at world2"
    )
    # Both ranks fail, and either may be the first.
    assert re.match(r"rank [01]: |ranks 0-1: ", rest[0])
    assert [re.sub(r"^ranks? [^:]+: ", "", line) for line in rest] == [
        "49,552 B (49.6 kB), 9,552 B (23.9 %) above",
        "params 16,384 B, grads 16,384 B, optimizer 16,384 B, buffers 400 B",
        'a ceiling that passes at world size 2: state="49.6 kB"',
    ]
    assert ">       shardcheck.check(run(shardcheck), max_memory(state=40_000))" in text


def test_a_failed_check_on_all_ranks_names_all_of_them(session):
    text = session.failure("test_unmet[world2]")
    folded = "ranks 0-1 of 2 failed" in text
    first, other = (set(re.findall(rf"rank ([01]){who} failed", text)) for who in (" of 2", ""))
    assert folded or first | other == {"0", "1"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "test_unmet_on_one_rank[world2]",
            ["rank 1 of 2 failed in its call", "rank 1: 32,768 B (32.8 kB), 16,384 B (100.0 %)"],
        ),
        (
            "test_narrowed_to_one_rank[world2]",
            ["rank 1 of 2 failed in its call", "memory(params, rank=-1): 1 B was expected"],
        ),
        (
            "test_all_unmet_are_shown[world2]",
            [
                "max_memory(params): the ceiling of 16,383 B",
                "memory(optimizer): 16,385 B (16.4 kB) was expected",
            ],
        ),
        (
            "test_a_check_does_not_replace_the_marker[world2]",
            ["max_memory(params): the ceiling of 16,383 B", "ranks 0-1: 16,384 B"],
        ),
        (
            "test_the_marker_does_not_replace_a_check[world2]",
            ["max_memory(params): the ceiling of 16,383 B", "of 2 failed in "],
        ),
    ],
)
def test_a_failed_check_names_its_rank_and_all_that_is_unmet(session, name, expected):
    text = session.failure(name)
    assert [part for part in expected if part not in text] == []


def test_a_met_expectation_is_not_shown_beside_an_unmet_one(session):
    assert "max_memory(grads)" not in session.failure("test_all_unmet_are_shown[world2]")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("test_unmet[world2]", "test_check.py"),
        ("test_a_usage_error[world2]", "test_measure.py"),
    ],
)
def test_our_own_frames_are_hidden(session, name, file):
    text = session.failure(name)
    assert re.search(rf"^{file}:\d+: \w+Error$", text, re.MULTILINE), "located at the test's line"
    assert "pytest_shardcheck/" not in text


@pytest.mark.parametrize(
    ("name", "absent", "stopped"),
    [
        ("test_on_one_rank_only[world2]", "rank 1", "rank 0 of 2 was stopped"),
        ("test_on_two_ranks_of_four[world4]", "ranks 0, 2", "ranks 1, 3 of 4 were stopped"),
        ("test_once_more_on_one_rank[world2]", "rank 0", "rank 1 of 2 was stopped"),
    ],
)
def test_a_lone_gather_names_who_never_called_it(session, name, absent, stopped):
    text = session.failure(name)
    assert f"{absent} never called the shardcheck.gather() that others wait in" in text
    assert stopped in text
    assert "still running after" not in text, "it ends long before its timeout"


def test_a_peer_that_raises_leads(session):
    text = session.failure("test_a_peer_raises[world2]")
    assert "rank 1 of 2 failed in its call" in text
    assert "ValueError: boom" in text
    assert "rank 0 was stopped by pytest-shardcheck in its call" in text
    assert "never called" not in text


def test_a_peer_that_dies_leads(session):
    text = session.failure("test_a_peer_dies[world2]")
    assert "rank 1 of 2 died in its call" in text
    assert "killed by SIGKILL" in text
    assert "rank 0 was stopped by pytest-shardcheck in its call" in text


def test_a_peer_that_waits_in_a_barrier_is_seen(session):
    """Neither can go on, and both are where a peer may yet join them: only a timeout can tell."""
    text = session.failure("test_a_peer_waits_in_a_barrier[world2]")
    assert "still running after 2 s" in text
    assert " in gather\n" in text, "each rank's stack is shown"
    assert " in barrier\n" in text, "each rank's stack is shown"
    assert "rank 1 waits in barrier #1" in text


def test_a_peers_failure_is_all_that_is_told_when_both_gather_in_teardown(session):
    text = session.failure("test_a_peer_fails_and_both_gather_in_teardown[world2]")
    assert "ValueError: boom" in text
    assert "rank 1 of 2 failed in its call" in text
    words = session.results["test_a_peer_fails_and_both_gather_in_teardown[world2]"]
    assert words == ["FAILED"]


def test_what_a_fixture_prints_in_teardown_is_relayed(session):
    """So the assertions in that teardown ran."""
    assert "too late, as it says" in session.out


def test_no_process_and_no_file_is_left(session):
    assert session.processes_left() == []
    assert session.files_left() == []
