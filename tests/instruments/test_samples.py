from __future__ import annotations

import random

import pytest

from pytest_shardcheck.instruments.samples import thinned


def test_few_are_kept_as_they_are():
    assert thinned([0, 5, 9], [3, 1, 2].__getitem__, 4) == [0, 1, 2]


def test_the_extremes_of_each_stretch_stay():
    #        0  1  2  3   4  5  6  7   8  9
    height = [0, 0, 9, 0, -4, 0, 7, 0, -1, 0]
    assert thinned(list(range(10)), height.__getitem__, 6) == [0, 2, 4, 6, 8, 9]


def test_stretches_are_of_the_axis_not_of_the_samples():
    at = [*range(100), 1000]
    kept = thinned(at, lambda _: 0, 20)
    # All but the last lie in the first tenth of the axis.
    assert kept == [0, 100]


@pytest.mark.parametrize("most", [4, 10, 64])
def test_what_is_needed_stays_and_so_does_the_peak(most):
    dice = random.Random(most)
    at = sorted(dice.randrange(5_000) for _ in range(2_000))
    height = [dice.randrange(1_000) for _ in at]
    needed = dice.sample(range(2_000), 7)
    kept = thinned(at, height.__getitem__, most, needed)
    assert kept == sorted(set(kept))
    assert set(needed) <= set(kept)
    assert {0, 1_999} <= set(kept)
    assert len(kept) <= most + 7
    assert max(height[place] for place in kept) == max(height)
    assert min(height[place] for place in kept) == min(height)
    assert kept == thinned(at, height.__getitem__, most, needed)
