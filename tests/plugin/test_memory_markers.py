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
    from pathlib import Path

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

    @memory(**{name: size - 1 for name, size in EXACT.items()})
    def test_exact_is_one_byte_short(shardcheck):
        run(shardcheck)

    @memory(**{name: size + 1 for name, size in EXACT.items()})
    def test_exact_is_one_byte_too_much(shardcheck):
        run(shardcheck)

    @max_memory(**{name: size - 1 for name, size in EXACT.items()})
    def test_ceiling_is_one_byte_short(shardcheck):
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
    @memory(params=P - 10, tolerance=10)
    @memory(params=16_500, tolerance="1%")
    @memory(params=16_500, tolerance=0.01)
    def test_tolerances_hold(shardcheck):
        run(shardcheck)

    @memory(params=P + 10, tolerance=9)
    @memory(params=P - 10, tolerance=9)
    @memory(params=16_600, tolerance="1%")
    @memory(params=16_700, tolerance=0.01)
    def test_tolerances_are_too_small(shardcheck):
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
    def test_a_skip_inside_a_region(shardcheck):
        with shardcheck.measure():
            pytest.skip("no need")

    @max_memory(params=1)
    def test_failing_does_not_touch_the_next(shardcheck):
        run(shardcheck)

    @pytest.mark.flaky(reruns=1)
    @max_memory(params=P)
    def test_the_second_run_fits(shardcheck, world):
        ran = Path(__file__).with_name(f"ran{world.rank}")
        run(shardcheck, width=1 if ran.exists() else 2)
        ran.touch()

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
    @memory(params=P, rank=0)
    @memory(params=2 * P, rank=-1)
    @memory(params=P, rank=-2)
    @memory(params=2 * P, rank=[1, -1])
    @memory(params=2 * P, rank=slice(1, None))
    @memory(params=P, rank=slice(None, -1))
    @memory(params=2 * P, rank={"world": -1})
    def test_each_choice_of_ranks_fits(shardcheck, world):
        run(shardcheck, width=1 + world.rank)

    @TWO
    @max_memory(params=P + 1, rank=-1)
    @max_memory(params=P + 2, rank=1)
    @max_memory(params=P + 3, rank=[1, -1])
    @max_memory(params=P + 4, rank=slice(1, None))
    def test_each_choice_of_ranks_crosses(shardcheck, world):
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
    @max_memory(params="1 TB", rank=2)
    @max_memory(params="1 TB", rank=-3)
    @max_memory(params="1 TB", rank=[0, 5])
    @max_memory(params="1 TB", rank=slice(2, None))
    @max_memory(params="1 TB", rank={"dp": 0})
    @max_memory(params="1 TB", rank={"world": 2})
    def test_rank_matches_nothing(shardcheck):
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

    @max_memory(params=P)
    def test_nested_of_the_same_name_is_not_judged_unnamed(shardcheck):
        small, large = build(1)[0], build(2)[0]
        with shardcheck.measure(small):
            with shardcheck.measure(large):
                pass

    @max_memory(params=P, region="step")
    def test_nested_of_the_same_name_is_judged_named(shardcheck):
        small, large = build(1)[0], build(2)[0]
        with shardcheck.measure(small):
            with shardcheck.measure(large):
                pass

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
    class TestMeasuresNothing(unittest.TestCase):
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

    MARKS = [xfail(strict=True), max_memory(params=1)]

    @pytest.mark.parametrize("n", [pytest.param(1, marks=MARKS)])
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
"""

FILES = {
    "kit.py": KIT,
    "test_values.py": VALUES,
    "test_ranks.py": RANKS,
    "test_regions.py": REGIONS,
    "test_closeness.py": CLOSENESS,
    "test_xfail.py": XFAIL,
}


MET = [
    "test_all_exact[world2]",
    "test_all_at_their_ceilings[world2]",
    "test_sizes_with_units[world2]",
    "test_param_marks[world2-fits]",
    "test_param_marks[world2-unmarked]",
    "test_without_marker_nothing_is_judged[world2]",
    "test_tolerances_hold[world2]",
    "test_each_choice_of_ranks_fits[world2]",
    "test_each_rank_its_own_value[world2]",
    "test_coordinate_fits[pp2xtp2]",
    "test_coordinate_on_both_axes[pp2xtp2]",
    "test_world_size[world2]",
    "test_mapping[world2]",
    "test_callable[world2]",
    "test_callable_returns_a_size_with_a_unit[world2]",
    "test_nested_is_not_judged_unnamed[world2]",
    "test_nested_of_the_same_name_is_not_judged_unnamed[world2]",
    "test_nested_fits_named[world2]",
    "test_only_the_named_region_is_judged[world2]",
    "test_body_fits[world2]",
    "test_what_is_not_judged_need_not_be_watched[world2]",
    "test_zero_means_zero[world2]",
    "test_zero_on_one_rank_only[world2]",
    "test_opened_on_the_judged_rank[world2]",
    "test_another_try_after_an_exception[world2]",
    "test_repeated_regions_fit[world2]",
    "test_function_wins_over_module[world2]",
    "TestClass.test_class_wins_over_module[world2]",
    "TestStricterClass.test_function_relaxes[world2]",
    "TestUnittest.test_fits[world2]",
    "TestUnittest.test_reads[world2]",
    "test_the_second_run_fits[world2]",
]


@pytest.fixture(scope="module")
def session(run_session):
    """Run all of them; the tests below look at its parts."""
    return run_session(FILES, "-rA")


@pytest.fixture(scope="module")
def xdist_session(run_session):
    """Run those with ``xfail`` once more, distributed over two workers."""
    files = {name: FILES[name] for name in ("kit.py", "test_xfail.py")}
    return run_session(files, "-rA", "-n", "2")


@pytest.mark.parametrize("name", MET)
def test_met_expectations_pass(session, name):
    assert session.results.get(name) == ["PASSED"]


def test_nothing_else_passes_and_nothing_errs(session):
    counts = session.outcomes
    assert counts.get("errors", 0) == 0
    assert (counts["passed"], counts["skipped"]) == (len(MET), 2)


@pytest.mark.parametrize(
    ("argument", "size"),
    [
        ("params", "16,384 B (16.4 kB)"),
        ("grads", "16,384 B (16.4 kB)"),
        ("optimizer", "16,384 B (16.4 kB)"),
        ("buffers", "400 B"),
        ("state", "49,552 B (49.6 kB)"),
    ],
)
@pytest.mark.parametrize(
    ("inner", "side"),
    [
        ("exact_is_one_byte_short", "above"),
        ("exact_is_one_byte_too_much", "below"),
        ("ceiling_is_one_byte_short", "above"),
    ],
)
def test_one_byte_fails(session, inner, side, argument, size):
    text = session.failure(f"test_{inner}[world2]")
    marker = "memory" if inner.startswith("exact") else "max_memory"
    block = text.partition(f"\n{marker}({argument}): ")[2].partition("_memory(")[0]
    assert re.match(rf".+\n  ranks 0-1: {re.escape(size)}, 1 B \([^)]+ %\) {side}\n", block), text


def test_a_crossed_ceiling_says_all_there_is_to_know(session):
    lines = session.failure("test_far_above_its_ceiling[world2]").splitlines()
    assert lines[1:] == [
        (
            "max_memory(state): the ceiling of 40,000 B (40.0 kB) was crossed"
            " in region 'step' at world2"
        ),
        "  ranks 0-1: 49,552 B (49.6 kB), 9,552 B (23.9 %) above",
        "    params 16,384 B, grads 16,384 B, optimizer 16,384 B, buffers 400 B",
        '  a ceiling that passes at world size 2: state="49.6 kB"',
    ]


def test_a_missed_exact_value_says_all_there_is_to_know(session):
    lines = session.failure("test_below_its_exact_value[world2]").splitlines()
    assert lines[1:] == [
        (
            "memory(state): 50,000 B (50.0 kB) was expected and not measured"
            " in region 'step' at world2"
        ),
        "  ranks 0-1: 49,552 B (49.6 kB), 448 B (0.9 %) below",
        "    params 16,384 B, grads 16,384 B, optimizer 16,384 B, buffers 400 B",
        "  the value that passes at world size 2: state=49_552",
    ]


def test_the_short_summary_names_the_marker(session):
    name = "test_zero_is_crossed[world2]"
    assert f"FAILED test_regions.py::{name} - max_memory(grads): the ceiling of 0 B" in session.out


def test_every_ceiling_that_is_printed_passes(session):
    """Each block: ranks with what they measured, breakdowns, then a ceiling or a value."""
    blocks = re.findall(
        r"^((?:  ranks? .+\n    .+\n)+)  a ceiling that passes .*: \w+=\"(.+)\"$",
        session.out,
        re.MULTILINE,
    )
    assert len(blocks) > 20
    for ranks, ceiling in blocks:
        measured = [parse_size(size) for size in re.findall(r"ranks? [^:]+: ([\d,]+ B)", ranks)]
        assert max(measured) <= parse_size(ceiling) <= 1.01 * max(measured)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "test_param_marks[world2-crossed]",
            ["max_memory(state): the ceiling of 49,551 B (49.6 kB) was crossed"],
        ),
        (
            "test_only_one_rank_crosses[world2]",
            [
                "  rank 0: 16,384 B (16.4 kB), as expected\n",
                "  rank 1: 32,768 B (32.8 kB), 16,384 B (100.0 %) above\n",
                "    params 32,768 B, grads 32,768 B, optimizer 32,768 B, buffers 400 B\n",
                'a ceiling that passes at world size 2: params="32.8 kB"',
            ],
        ),
        (
            "test_ranks_differ_under_an_exact_marker[world2]",
            ["rank 1: 32,768 B", 'narrow by rank= or region=, or use max_memory(params="32.8 kB")'],
        ),
        ("test_zero_is_crossed[world2]", ["the ceiling of 0 B", "16,384 B above"]),
        ("test_failing_does_not_touch_the_next[world2]", ["the ceiling of 1 B"]),
        ("test_a_fixture_measures[world2]", ["in region 'step'", "32,768 B"]),
        ("test_device_crosses[world2]", ["max_memory(params, device='cpu')", "32,768 B"]),
    ],
)
def test_unmet_values_fail(session, name, expected):
    text = session.failure(name)
    assert [part for part in expected if part not in text] == []


def test_tolerances_that_are_too_small_fail(session):
    text = session.failure("test_tolerances_are_too_small[world2]")
    expected = re.findall(r"^memory\(params\): ([\d,]+) B \(.*\) ± (\d+) B was", text, re.MULTILINE)
    assert sorted(expected) == [
        ("16,374", "9"),
        ("16,394", "9"),
        ("16,600", "166"),
        ("16,700", "167"),
    ]
    assert "10 B (less than 0.1 %) above" in text
    assert "10 B (less than 0.1 %) below" in text
    assert "216 B (1.3 %) below" in text


def test_all_crossed_arguments_are_shown_and_no_other(session):
    text = session.failure("test_two_of_three_arguments_are_crossed[world2]")
    assert "max_memory(params): the ceiling of 16,383 B" in text
    assert "max_memory(optimizer): the ceiling of 16,382 B" in text
    assert "max_memory(grads)" not in text


@pytest.mark.parametrize("inner", ["comes_before_any_verdict", "inside_a_region"])
def test_an_exception_leads_and_no_verdict_is_added(session, inner):
    text = session.failure(f"test_an_exception_{inner}[world2]")
    assert "ValueError: boom" in text
    assert "ranks 0-1 of 2 failed in " in text
    assert "max_memory(params)" not in text


def test_a_rerun_is_judged_by_its_own_readings(session):
    assert session.results["test_the_second_run_fits[world2]"] == ["PASSED"]
    assert "1 rerun in " in session.out, "its first run crossed the ceiling"


def test_a_skipped_test_is_not_judged(session):
    skipped = re.findall(r"^SKIPPED \[1\] test_values.py:\d+: no need$", session.out, re.MULTILINE)
    assert len(skipped) == 2
    assert not any("test_a_skip" in name for name in session.results)


@pytest.mark.parametrize(
    ("claim", "ceiling"),
    [
        ("rank=-1", "16,385 B"),
        ("rank=1", "16,386 B"),
        ("rank=[-1, 1]", "16,387 B"),
        ("rank=slice(1, None, None)", "16,388 B"),
    ],
)
def test_each_choice_of_ranks_is_judged_alone(session, claim, ceiling):
    text = session.failure("test_each_choice_of_ranks_crosses[world2]")
    _, found, block = text.partition(f"max_memory(params, {claim}): the ceiling of {ceiling} ")
    assert found
    block = block.partition("max_memory(")[0]
    assert re.findall(r"^  (ranks? [^:]+): ([\d,]+)", block, re.MULTILINE) == [("rank 1", "32,768")]


@pytest.mark.parametrize(
    "expected",
    [
        "rank=2) matched nothing at world2: rank 2 is not in this world of ranks 0-1",
        "rank=-3) matched nothing at world2: rank -3 is not in this world of ranks 0-1",
        "rank=[0, 5]) matched nothing at world2: rank 5 is not in this world of ranks 0-1",
        "rank=slice(2, None, None)) matched nothing at world2: the slice holds no rank of this",
        "rank={'dp': 0}) matched nothing at world2: the mesh has no axis 'dp'; its axes: 'world'",
        "rank={'world': 2}) matched nothing at world2: index 2 is not on the axis 'world' of 2",
    ],
)
def test_a_rank_that_is_not_there_lists_those_that_are(session, expected):
    assert expected in session.failure("test_rank_matches_nothing[world2]")


@pytest.mark.parametrize(
    ("name", "claim", "ranks"),
    [
        ("test_list_of_both_ranks[world2]", "rank=[0, 1]", "ranks 0-1"),
        ("test_each_rank_its_own_value_one_is_wrong[world2]", "rank=1", "rank 1"),
        ("test_coordinate_crosses[pp2xtp2]", "rank={'pp': -1}", "ranks 2-3"),
        ("test_coordinate_on_the_fast_axis_crosses[pp2xtp2]", "rank={'tp': 1}", "ranks 1, 3"),
    ],
)
def test_only_the_chosen_ranks_are_judged(session, name, claim, ranks):
    text = session.failure(name)
    assert f"memory(params, {claim}): " in text
    assert re.findall(r"^  (ranks? [^:]+): ", text, re.MULTILINE) == [ranks]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_coordinate_on_no_axis[pp2xtp2]", ["no axis 'ep'", "'pp' of 2, 'tp' of 2"]),
        (
            "test_misspelt_region[world2]",
            ["'stpe'", "did you mean 'step'?", "'step' (ranks 0-1)", "'evaluation' (ranks 0-1)"],
        ),
        ("test_named_region_and_none_opened[world2]", ["opened no region", "region='step'"]),
        ("test_named_and_opened_on_the_other_rank[world2]", ["no region 'step'", "(rank 0)"]),
        ("test_opened_on_the_other_rank[world2]", ["rank=1", "'step' (rank 0)"]),
    ],
)
def test_a_narrowing_that_matches_nothing_lists_what_there_was(session, name, expected):
    text = session.failure(name)
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_world_size[world4]", ["memory(params, world_size=4): 16,385 B", "ranks 0-3"]),
        ("test_mapping[world4]", ["the ceiling of 16,000 B", 'at world size 4: params="16.4 kB"']),
        ("test_callable[world4]", ["the ceiling of 8,192 B", "(100.0 %) above", "at world4"]),
    ],
)
def test_values_by_world_size(session, name, expected):
    text = session.failure(name)
    assert [part for part in expected if part not in text] == []


def test_a_callable_sees_the_mesh(pytester):
    """A callable is called at collection; its axes are those of the fixture `world`."""
    pytester.makepyfile(
        """
        import pytest

        def ceiling(world):
            assert world.size == 4
            assert not world.simulated
            return 1000 // world.mesh["pp"]

        @pytest.mark.world_size(mesh={"pp": 2, "tp": 2})
        @pytest.mark.max_memory(params=ceiling)
        def test_pipeline(shardcheck):
            pass
        """
    )
    result = pytester.runpytest("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*::test_pipeline[[]pp2xtp2[]]"])
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize(
    ("name", "region", "figure"),
    [
        ("test_outermost_is_judged_unnamed[world2]", "outer", "16,384 B"),
        ("test_nested_crosses_named[world2]", "inner", "32,768 B"),
        ("test_nested_of_the_same_name_is_judged_named[world2]", "step", "32,768 B"),
        ("test_every_outermost_region_is_judged[world2]", "second", "32,768 B"),
        ("test_body_crosses[world2]", "body", "16,384 B"),
        ("test_one_of_repeated_regions_crosses[world2]", "step", "32,768 B"),
        ("test_started_and_stopped[world2]", "step", "32,768 B"),
        ("test_started_and_never_stopped[world2]", "step", "32,768 B"),
    ],
)
def test_the_region_that_fails_is_named_and_no_other(session, name, region, figure):
    text = session.failure(name)
    assert re.findall(r"was crossed in region '(\w+)'", text) == [region]
    assert f"  ranks 0-1: {figure} (" in text


def test_the_occurrence_that_fails_is_named(session):
    text = session.failure("test_one_of_repeated_regions_crosses[world2]")
    assert "in region 'step' #1 at world2" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test_measured_nothing[world2]", ["opened no region", "with shardcheck.measure(model"]),
        ("test_measured_nothing_with_the_fixture[world2]", ["opened no region", "ranks 0-1"]),
        ("test_measured_nothing_exactly[world2]", ["memory(params) is unmeasured", "no region"]),
        ("TestMeasuresNothing.test_nothing[world2]", ["opened no region", "ranks 0-1"]),
        ("test_watched_nothing[world2]", ["ranks 0-1: no module was watched", "region 'step'"]),
        ("test_watched_nothing_but_an_empty_list[world2]", ["no module was watched"]),
        ("test_no_optimizer_was_watched[world2]", ["no optimizer was watched", "optimizer can't"]),
        ("test_no_module_was_watched[world2]", ["no module was watched", "params can't be known"]),
        (
            "test_ceiling_over_zeros[world2]",
            ["was 0 on every judged rank", "write optimizer=0"],
        ),
        ("test_zero_on_the_one_judged_rank[world2]", ["optimizer was 0 on every judged rank"]),
        ("test_device_that_holds_nothing[world2]", ["device='cuda'", "params was 0"]),
        ("test_opened_on_one_rank_only[world2]", ["rank 1 recorded no region 'step'", "rank 0"]),
        ("test_named_and_opened_on_one_rank_only[world2]", ["rank 1 recorded no region 'step'"]),
        ("test_one_rank_repeats_less[world2]", ["rank 1 recorded no region 'step' #2", "rank 0"]),
    ],
)
def test_nothing_measured_is_no_success(session, name, expected):
    text = session.failure(name)
    assert "is unmeasured in region" in text
    assert [part for part in expected if part not in text] == []


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("test_the_region_ended_by_an_exception[world2]", "ranks 0-1"),
        ("test_the_region_of_one_rank_ended_by_an_exception[world2]", "rank 1"),
    ],
)
def test_a_region_that_an_exception_ended_is_named(session, name, ranks):
    text = session.failure(name)
    assert "max_memory(params)" in text
    assert "'step'" in text
    assert ranks in text
    assert "exception" in text, "it was opened, so 'open it' is no advice"


@pytest.mark.parametrize(
    ("name", "ceilings"),
    [
        ("test_module_level[world2]", ["params 16,381"]),
        ("test_function_is_stricter_than_module[world2]", ["params 16,383"]),
        ("test_another_narrowing_does_not_replace[world2]", ["params 16,381"]),
        ("test_the_other_marker_does_not_replace[world2]", ["params 16,381"]),
        (
            "test_an_argument_that_is_not_replaced_applies[world2]",
            ["params 16,384", "optimizer 16,384"],
        ),
        ("test_both_of_one_level_apply[world2]", ["params 16,382"]),
        ("TestClass.test_function_wins_over_class[world2]", ["params 16,383"]),
        ("TestClass.test_param_wins_over_class[world2-1]", ["params 16,382"]),
        ("TestStricterClass.test_class_level_crosses[world2]", ["params 16,383"]),
        ("TestUnittest.test_crosses[world2]", ["params 16,384", "optimizer 16,384"]),
        ("TestUnittest.test_method_wins[world2]", ["params 16,383"]),
    ],
)
def test_the_closest_marker_wins(session, name, ceilings):
    text = session.failure(name)
    found = re.findall(r"max_memory\((\w+)[^)]*\): the ceiling of ([\d,]+) B", text)
    assert [" ".join(pair) for pair in found] == ceilings


XFAILED = {
    "test_bare[world2]": "XFAIL",
    "test_raises_assertion_error[world2]": "XFAIL",
    "test_raises_unmet[world2]": "XFAIL",
    "test_raises_one_of_several[world2]": "XFAIL",
    "test_raises_value_error[world2]": "FAILED",
    "test_strict_unmet[world2]": "XFAIL",
    "test_strict_unmet_named[world2]": "XFAIL",
    "test_strict_met[world2]": "FAILED",
    "test_strict_raises_value_error[world2]": "FAILED",
    "test_met[world2]": "XPASS",
    "test_condition_is_false[world2]": "FAILED",
    "test_with_a_reason[world2]": "XFAIL",
    "test_not_run[world2]": "XFAIL",
    "test_in_param[world2-1]": "XFAIL",
    "test_check_unmet[world2]": "XFAIL",
    "test_check_assertion_error[world2]": "XFAIL",
    "test_check_value_error[world2]": "FAILED",
    "test_check_on_one_rank[world2]": "XFAIL",
}


@pytest.mark.parametrize(("name", "word"), XFAILED.items())
def test_an_unmet_expectation_can_be_expected(session, name, word):
    assert session.results[name] == [word]


@pytest.mark.parametrize(("name", "word"), XFAILED.items())
def test_an_unmet_expectation_can_be_expected_under_xdist(xdist_session, name, word):
    assert xdist_session.results[name] == [word]


@pytest.mark.parametrize("which", ["session", "xdist_session"])
def test_another_error_than_the_expected_one_shows_the_verdict(request, which):
    text = request.getfixturevalue(which).failure("test_raises_value_error[world2]")
    assert "max_memory(params): the ceiling of 1 B was crossed in region 'step' at world2" in text
    assert "ranks 0-1: 16,384 B" in text


@pytest.mark.parametrize("which", ["session", "xdist_session"])
def test_a_strict_xfail_that_is_met_says_so(request, which):
    assert "[XPASS(strict)]" in request.getfixturevalue(which).failure("test_strict_met[world2]")


def test_the_reason_of_an_xfail_is_shown(session):
    assert "test_with_a_reason[world2] - sharding is broken, see #7" in session.out


@pytest.mark.parametrize("which", ["session", "xdist_session"])
def test_no_process_and_no_file_is_left(request, which):
    session = request.getfixturevalue(which)
    assert session.processes_left() == []
    assert session.files_left() == []
