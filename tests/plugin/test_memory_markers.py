"""The markers ``memory`` and ``max_memory`` in real worlds: what they judge, and what they say.

One inner session holds all the inner tests; each test here looks at one of them.
"""

from __future__ import annotations

import re

import pytest

from pytest_shardcheck.vocabulary.units import parse_size

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

VALUES = """
    import pytest
    from kit import P, STATE, run

    pytestmark = pytest.mark.world_size(2)
    memory, max_memory = pytest.mark.memory, pytest.mark.max_memory
    EXACT = {"params": P, "grads": P, "optimizer": P, "buffers": 400, "state": STATE}

    @memory(**EXACT)
    def test_all_exact(shardcheck):
        run(shardcheck)

    @max_memory(**EXACT)
    def test_all_at_their_ceilings(shardcheck):
        run(shardcheck)

    @pytest.mark.parametrize("argument", [
        pytest.param(name, marks=memory(**{name: size - 1})) for name, size in EXACT.items()
    ])
    def test_exact_is_one_byte_short(shardcheck, argument):
        run(shardcheck)

    @pytest.mark.parametrize("argument", [
        pytest.param(name, marks=memory(**{name: size + 1})) for name, size in EXACT.items()
    ])
    def test_exact_is_one_byte_too_much(shardcheck, argument):
        run(shardcheck)

    @pytest.mark.parametrize("argument", [
        pytest.param(name, marks=max_memory(**{name: size - 1})) for name, size in EXACT.items()
    ])
    def test_ceiling_is_one_byte_short(shardcheck, argument):
        run(shardcheck)

    @pytest.mark.parametrize("argument", [
        pytest.param("fits", marks=max_memory(state=STATE)),
        pytest.param("crossed", marks=max_memory(state=STATE - 1)),
        "unmarked",
    ])
    def test_param_marks(shardcheck, argument):
        run(shardcheck)

    @max_memory(state="40 kB")
    def test_far_above_its_ceiling(shardcheck):
        run(shardcheck)

    @memory(state=50_000)
    def test_below_its_exact_value(shardcheck):
        run(shardcheck)

    @max_memory(state="49.552 kB", params="16 KiB")
    def test_sizes_with_units(shardcheck):
        run(shardcheck)

    @max_memory(params=P - 1, grads=P, optimizer=P - 2)
    def test_two_of_three_arguments_are_crossed(shardcheck):
        run(shardcheck)

    @max_memory(params=P)
    def test_only_one_rank_crosses(shardcheck, world):
        run(shardcheck, width=1 + world.rank)

    @memory(params=P)
    def test_ranks_differ_under_an_exact_marker(shardcheck, world):
        run(shardcheck, width=1 + world.rank)

    @memory(params=P + 10, tolerance=10)
    def test_tolerance_in_bytes_holds(shardcheck):
        run(shardcheck)

    @memory(params=P - 10, tolerance=10)
    def test_tolerance_holds_above_too(shardcheck):
        run(shardcheck)

    @memory(params=P + 10, tolerance=9)
    def test_tolerance_in_bytes_is_too_small(shardcheck):
        run(shardcheck)

    @memory(params=P - 10, tolerance=9)
    def test_tolerance_is_too_small_above_too(shardcheck):
        run(shardcheck)

    @memory(params=16_500, tolerance="1%")
    def test_tolerance_in_percent_holds(shardcheck):
        run(shardcheck)

    @memory(params=16_600, tolerance="1%")
    def test_tolerance_in_percent_is_too_small(shardcheck):
        run(shardcheck)

    @memory(params=16_500, tolerance=0.01)
    def test_tolerance_as_a_share_holds(shardcheck):
        run(shardcheck)

    @memory(params=16_600, tolerance=0.01)
    def test_tolerance_as_a_share_is_too_small(shardcheck):
        run(shardcheck)

    @max_memory(params=1)
    def test_an_exception_comes_before_any_verdict(shardcheck):
        run(shardcheck)
        raise ValueError("boom")

    @max_memory(params=1)
    def test_an_exception_inside_a_region(shardcheck):
        with shardcheck.measure():
            raise ValueError("boom")

    @max_memory(params=1)
    def test_a_skip_comes_before_any_verdict(shardcheck):
        run(shardcheck)
        pytest.skip("no need")

    @max_memory(params=1)
    def test_failing_does_not_touch_the_next(shardcheck):
        run(shardcheck)

    def test_without_marker_nothing_is_judged(shardcheck):
        run(shardcheck)
"""

RANKS = """
    import pytest
    from kit import P, run

    memory, max_memory = pytest.mark.memory, pytest.mark.max_memory
    TWO = pytest.mark.world_size(2)
    GRID = pytest.mark.world_size(mesh={"pp": 2, "tp": 2})

    # Rank 0 holds P bytes of parameters, rank 1 holds 2 P.
    @TWO
    @pytest.mark.parametrize("rank", [
        pytest.param(name, marks=memory(params=size, rank=rank)) for name, size, rank in [
            ("first", P, 0),
            ("last", 2 * P, -1),
            ("first_from_the_end", P, -2),
            ("list", 2 * P, [1, -1]),
            ("slice", 2 * P, slice(1, None)),
            ("slice_from_the_end", P, slice(None, -1)),
        ]
    ])
    def test_rank_fits(shardcheck, world, rank):
        run(shardcheck, width=1 + world.rank)

    @TWO
    @pytest.mark.parametrize("rank", [
        pytest.param(name, marks=max_memory(params=P, rank=rank)) for name, rank in [
            ("last", -1), ("one", 1), ("list", [1]), ("slice", slice(1, None)),
        ]
    ])
    def test_rank_crosses(shardcheck, world, rank):
        run(shardcheck, width=1 + world.rank)

    @TWO
    @max_memory(params=P - 1, rank=[0, 1])
    def test_list_of_both_ranks(shardcheck):
        run(shardcheck)

    @TWO
    @memory(params=P, rank=0)
    @memory(params=2 * P, rank=1)
    def test_each_rank_its_own_value(shardcheck, world):
        run(shardcheck, width=1 + world.rank)

    @TWO
    @memory(params=P, rank=0)
    @memory(params=P, rank=1)
    def test_each_rank_its_own_value_one_is_wrong(shardcheck, world):
        run(shardcheck, width=1 + world.rank)

    @TWO
    @pytest.mark.parametrize("rank", [
        pytest.param(name, marks=max_memory(params="1 TB", rank=rank)) for name, rank in [
            ("int", 2), ("negative", -3), ("list", [0, 5]), ("slice", slice(2, None)),
            ("axis", {"dp": 0}), ("index", {"world": 2}),
        ]
    ])
    def test_rank_matches_nothing(shardcheck, rank):
        run(shardcheck)

    # The stages hold P and 2 P, whatever their tensor-parallel index.
    @GRID
    @memory(params=P, rank={"pp": 0})
    @memory(params=2 * P, rank={"pp": -1})
    def test_coordinate_fits(shardcheck, world):
        run(shardcheck, width=1 + world.rank // 2)

    @GRID
    @max_memory(params=P, rank={"pp": -1})
    def test_coordinate_crosses(shardcheck, world):
        run(shardcheck, width=1 + world.rank // 2)

    @GRID
    @memory(params=P, rank={"pp": 1, "tp": 0})
    def test_coordinate_on_both_axes(shardcheck, world):
        run(shardcheck, width=1 if world.rank == 2 else 2)

    @GRID
    @memory(params=P, rank={"tp": 1})
    def test_coordinate_on_the_fast_axis_crosses(shardcheck, world):
        run(shardcheck, width=1 + world.rank % 2)

    @GRID
    @memory(params=P, rank={"ep": 0})
    def test_coordinate_on_no_axis(shardcheck):
        run(shardcheck)

    @pytest.mark.world_size(2, 4)
    @memory(params=P, world_size=2)
    @memory(params=P + 1, world_size=4)
    def test_world_size(shardcheck):
        run(shardcheck)

    @pytest.mark.world_size(2, 4)
    @max_memory(params={2: P, 4: "16 kB"})
    def test_mapping(shardcheck):
        run(shardcheck)

    @pytest.mark.world_size(2, 4)
    @max_memory(params=lambda world: 2 * P // world.size)
    def test_callable(shardcheck):
        run(shardcheck)

    @TWO
    @max_memory(params=lambda world: "16.384 kB")
    def test_callable_returns_a_size_with_a_unit(shardcheck):
        run(shardcheck)
"""

REGIONS = """
    import pytest
    import torch
    from kit import P, build, run, step

    pytestmark = pytest.mark.world_size(2)
    memory, max_memory = pytest.mark.memory, pytest.mark.max_memory

    def nested(shardcheck):
        small, large = build(1)[0], build(2)[0]
        with shardcheck.measure(small, region="outer"):
            with shardcheck.measure(large, region="inner"):
                pass

    @max_memory(params=P)
    def test_nested_is_not_judged_unnamed(shardcheck):
        nested(shardcheck)

    @max_memory(params=P - 1)
    def test_outermost_is_judged_unnamed(shardcheck):
        nested(shardcheck)

    @memory(params=2 * P, region="inner")
    @memory(params=P, region="outer")
    def test_nested_fits_named(shardcheck):
        nested(shardcheck)

    @max_memory(params=P, region="inner")
    def test_nested_crosses_named(shardcheck):
        nested(shardcheck)

    @max_memory(params=P, region="first")
    def test_only_the_named_region_is_judged(shardcheck):
        run(shardcheck, region="first")
        run(shardcheck, region="second", width=2)

    @max_memory(params=P)
    def test_every_outermost_region_is_judged(shardcheck):
        run(shardcheck, region="first")
        run(shardcheck, region="second", width=2)

    @max_memory(params=P, region="stpe")
    def test_misspelt_region(shardcheck):
        run(shardcheck)
        run(shardcheck, region="evaluation")

    @max_memory(params=P, region="step")
    def test_named_region_and_none_opened(shardcheck):
        shardcheck.watch(build()[0])

    @memory(params=P, grads=P, optimizer=P)
    def test_body_fits(shardcheck):
        model, optimizer = build()
        shardcheck.watch(model, optimizer)
        step(model, optimizer)

    @max_memory(grads=P - 1)
    def test_body_crosses(shardcheck):
        model, optimizer = build()
        shardcheck.watch(model, optimizer)
        step(model, optimizer)
        optimizer.zero_grad()  # they are judged as they were at the entry of the step

    @max_memory(params=P)
    def test_measured_nothing():
        pass

    @max_memory(params=P)
    def test_measured_nothing_with_the_fixture(shardcheck):
        pass

    @memory(params=0)
    def test_measured_nothing_exactly(shardcheck):
        pass

    @max_memory(params=P)
    def test_watched_nothing(shardcheck):
        with shardcheck.measure():
            pass

    @max_memory(params=P)
    def test_watched_nothing_but_an_empty_list(shardcheck):
        with shardcheck.measure([]):
            pass

    @max_memory(state=10 * P)
    def test_no_optimizer_was_watched(shardcheck):
        with shardcheck.measure(build()[0]):
            pass

    @max_memory(params=10 * P)
    def test_no_module_was_watched(shardcheck):
        with shardcheck.measure(build()[1]):
            pass

    @memory(params=P)
    def test_what_is_not_judged_need_not_be_watched(shardcheck):
        with shardcheck.measure(build()[0]):
            pass

    @max_memory(optimizer=P)
    def test_ceiling_over_zeros(shardcheck):
        with shardcheck.measure(build()):
            pass

    @max_memory(optimizer=0, grads=0)
    @memory(optimizer=0, grads=0)
    def test_zero_means_zero(shardcheck):
        with shardcheck.measure(build()):
            pass

    @max_memory(grads=0)
    def test_zero_is_crossed(shardcheck):
        run(shardcheck)

    @max_memory(optimizer=P)
    def test_zero_on_one_rank_only(shardcheck, world):
        model, optimizer = build()
        with shardcheck.measure(model, optimizer):
            if world.rank == 1:
                step(model, optimizer)

    @max_memory(optimizer=P, rank=0)
    def test_zero_on_the_one_judged_rank(shardcheck, world):
        model, optimizer = build()
        with shardcheck.measure(model, optimizer):
            if world.rank == 1:
                step(model, optimizer)

    @max_memory(params=P)
    def test_opened_on_one_rank_only(shardcheck, world):
        if world.rank == 0:
            run(shardcheck)

    @max_memory(params=P, region="step")
    def test_named_and_opened_on_one_rank_only(shardcheck, world):
        if world.rank == 0:
            run(shardcheck)

    @max_memory(params=P, rank=0)
    def test_opened_on_the_judged_rank(shardcheck, world):
        if world.rank == 0:
            run(shardcheck)

    @max_memory(params=P, rank=1)
    def test_opened_on_the_other_rank(shardcheck, world):
        if world.rank == 0:
            run(shardcheck)

    @max_memory(params=P, rank=1, region="step")
    def test_named_and_opened_on_the_other_rank(shardcheck, world):
        if world.rank == 0:
            run(shardcheck)

    @max_memory(params=P)
    def test_the_region_of_one_rank_ended_by_an_exception(shardcheck, world):
        try:
            with shardcheck.measure(build()[0]):
                if world.rank == 1:
                    raise ValueError("boom")
        except ValueError:
            pass

    @max_memory(params=P)
    def test_the_region_ended_by_an_exception(shardcheck):
        with pytest.raises(ValueError):
            with shardcheck.measure(build()[0]):
                raise ValueError("boom")

    @max_memory(params=P)
    def test_another_try_after_an_exception(shardcheck):
        with pytest.raises(ValueError):
            with shardcheck.measure(build(2)[0]):
                raise ValueError("boom")
        run(shardcheck)

    @max_memory(params=2 * P)
    def test_repeated_regions_fit(shardcheck):
        for width in (1, 2, 1):
            run(shardcheck, width)

    @max_memory(params=P)
    def test_one_of_repeated_regions_crosses(shardcheck):
        for width in (1, 2, 1):
            run(shardcheck, width)

    @max_memory(params=P)
    def test_one_rank_repeats_less(shardcheck, world):
        for _ in range(3 - world.rank):
            run(shardcheck)

    @max_memory(params=P)
    def test_started_and_stopped(shardcheck):
        shardcheck.start(build(2)[0])
        shardcheck.stop()

    @max_memory(params=P)
    def test_started_and_never_stopped(shardcheck):
        shardcheck.start(build(2)[0])

    def opens_in_setup(shardcheck):
        run(shardcheck, width=2)

    @pytest.fixture
    def measured_in_setup(shardcheck):
        run(shardcheck, width=2)

    @max_memory(params=P)
    def test_a_fixture_measures(measured_in_setup):
        pass

    @max_memory(params=P, device="cpu")
    def test_device_crosses(shardcheck):
        run(shardcheck, width=2)

    @max_memory(params=P, device="cuda")
    def test_device_that_holds_nothing(shardcheck):
        run(shardcheck)
"""

CLOSENESS = """
    import unittest

    import pytest
    from kit import P, build, run

    memory, max_memory = pytest.mark.memory, pytest.mark.max_memory
    pytestmark = [pytest.mark.world_size(2), max_memory(params=P - 3, optimizer=P)]

    def test_module_level(shardcheck):
        run(shardcheck)

    @max_memory(params=P)
    def test_function_wins_over_module(shardcheck):
        run(shardcheck)

    @max_memory(params=P - 1)
    def test_function_is_stricter_than_module(shardcheck):
        run(shardcheck)

    @max_memory(params=P, rank=0)
    def test_another_narrowing_does_not_replace(shardcheck):
        run(shardcheck)

    @memory(params=P)
    def test_the_other_marker_does_not_replace(shardcheck):
        run(shardcheck)

    @max_memory(params=P)
    def test_an_argument_that_is_not_replaced_applies(shardcheck, world):
        run(shardcheck, width=2)

    @max_memory(params=P)
    @max_memory(params=P - 2)
    def test_both_of_one_level_apply(shardcheck):
        run(shardcheck)

    @max_memory(params=P)
    class TestClass:
        def test_class_wins_over_module(self, shardcheck):
            run(shardcheck)

        @max_memory(params=P - 1)
        def test_function_wins_over_class(self, shardcheck):
            run(shardcheck)

        @pytest.mark.parametrize("n", [pytest.param(1, marks=max_memory(params=P - 2))])
        def test_param_wins_over_class(self, shardcheck, n):
            run(shardcheck)

    @max_memory(params=P - 1)
    class TestStricterClass:
        def test_class_level_crosses(self, shardcheck):
            run(shardcheck)

        @max_memory(params=P)
        def test_function_relaxes(self, shardcheck):
            run(shardcheck)

    @max_memory(params=P)
    class TestUnittest(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def _shardcheck(self, shardcheck):
            self.shardcheck = shardcheck

        def test_fits(self):
            run(self.shardcheck)

        def test_crosses(self):
            run(self.shardcheck, width=2)

        @max_memory(params=P - 1)
        def test_method_wins(self):
            run(self.shardcheck)

        def test_reads(self):
            self.assertEqual(run(self.shardcheck).memory.params, P)

    @max_memory(params=P)
    class TestUnittestMeasuresNothing(unittest.TestCase):
        def test_nothing(self):
            pass
"""

XFAIL = """
    import pytest
    import pytest_shardcheck
    from kit import P, build, run

    pytestmark = pytest.mark.world_size(2)
    xfail, max_memory = pytest.mark.xfail, pytest.mark.max_memory
    Unmet = pytest_shardcheck.UnmetExpectationError

    @xfail
    @max_memory(params=1)
    def test_bare(shardcheck):
        run(shardcheck)

    @xfail(raises=AssertionError)
    @max_memory(params=1)
    def test_raises_assertion_error(shardcheck):
        run(shardcheck)

    @xfail(raises=Unmet)
    @max_memory(params=1)
    def test_raises_unmet(shardcheck):
        run(shardcheck)

    @xfail(raises=(ValueError, Unmet))
    @max_memory(params=1)
    def test_raises_one_of_several(shardcheck):
        run(shardcheck)

    @xfail(raises=ValueError)
    @max_memory(params=1)
    def test_raises_value_error(shardcheck):
        run(shardcheck)

    @xfail(strict=True)
    @max_memory(params=1)
    def test_strict_unmet(shardcheck):
        run(shardcheck)

    @xfail(strict=True, raises=Unmet)
    @max_memory(params=1)
    def test_strict_unmet_named(shardcheck):
        run(shardcheck)

    @xfail(strict=True)
    @max_memory(params=P)
    def test_strict_met(shardcheck):
        run(shardcheck)

    @xfail(strict=True, raises=ValueError)
    @max_memory(params=1)
    def test_strict_raises_value_error(shardcheck):
        run(shardcheck)

    @xfail
    @max_memory(params=P)
    def test_met(shardcheck):
        run(shardcheck)

    @xfail(False, reason="not here")
    @max_memory(params=1)
    def test_condition_is_false(shardcheck):
        run(shardcheck)

    @xfail(True, reason="sharding is broken, see #7")
    @max_memory(params=1)
    def test_with_a_reason(shardcheck):
        run(shardcheck)

    @xfail(run=False, reason="not run")
    @max_memory(params=P)
    def test_not_run(shardcheck):
        run(shardcheck)

    @pytest.mark.parametrize("n", [pytest.param(1, marks=[xfail(strict=True), max_memory(params=1)])])
    def test_in_param(shardcheck, n):
        run(shardcheck)

    @xfail(raises=Unmet)
    def test_check_unmet(shardcheck):
        shardcheck.check(run(shardcheck), pytest_shardcheck.max_memory(params=1))

    @xfail(raises=AssertionError, strict=True)
    def test_check_assertion_error(shardcheck):
        shardcheck.check(run(shardcheck), pytest_shardcheck.max_memory(params=1))

    @xfail(raises=ValueError)
    def test_check_value_error(shardcheck):
        shardcheck.check(run(shardcheck), pytest_shardcheck.max_memory(params=1))

    @xfail(raises=Unmet)
    def test_check_on_one_rank(shardcheck, world):
        measurement = run(shardcheck)
        if world.rank == 1:
            shardcheck.check(measurement, pytest_shardcheck.max_memory(params=1))

    @xfail
    def test_a_marker_of_the_body_is_added_by_request(request, shardcheck):
        run(shardcheck)
        raise ValueError("boom")
"""

FILES = {
    "kit.py": KIT,
    "test_values.py": VALUES,
    "test_ranks.py": RANKS,
    "test_regions.py": REGIONS,
    "test_closeness.py": CLOSENESS,
    "test_xfail.py": XFAIL,
}


@pytest.fixture(scope="module")
def session(run_session):
    """Run all of them; the tests below look at its parts."""
    return run_session(FILES, "-rA", "--tb=short")


def fragments(*expected: str, id: str) -> object:
    return pytest.param(id, expected, id=id)


PASSED = [
    "test_all_exact",
    "test_all_at_their_ceilings",
    "test_param_marks[fits]",
    "test_param_marks[unmarked]",
    "test_sizes_with_units",
    "test_tolerance_in_bytes_holds",
    "test_tolerance_holds_above_too",
    "test_tolerance_in_percent_holds",
    "test_tolerance_as_a_share_holds",
    "test_without_marker_nothing_is_judged",
    "test_rank_fits[first]",
    "test_rank_fits[last]",
    "test_rank_fits[first_from_the_end]",
    "test_rank_fits[list]",
    "test_rank_fits[slice]",
    "test_rank_fits[slice_from_the_end]",
    "test_each_rank_its_own_value",
    "test_coordinate_fits[pp2xtp2]",
    "test_coordinate_on_both_axes[pp2xtp2]",
    "test_world_size",
    "test_mapping",
    "test_callable",
    "test_callable_returns_a_size_with_a_unit",
    "test_nested_is_not_judged_unnamed",
    "test_nested_fits_named",
    "test_only_the_named_region_is_judged",
    "test_body_fits",
    "test_what_is_not_judged_need_not_be_watched",
    "test_zero_means_zero",
    "test_zero_on_one_rank_only",
    "test_opened_on_the_judged_rank",
    "test_another_try_after_an_exception",
    "test_repeated_regions_fit",
    "test_function_wins_over_module",
    "TestClass.test_class_wins_over_module",
    "TestStricterClass.test_function_relaxes",
    "TestUnittest.test_fits",
    "TestUnittest.test_reads",
]
