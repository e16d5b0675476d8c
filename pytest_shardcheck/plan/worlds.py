"""Which worlds a table or a chart shows where none were asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.plan.footprint import ShrinkingEstimate

_LEAST: Final = 64
_MOST: Final = 1024
_POINTS_OF_A_DOUBLING: Final = 8


def shown_worlds(
    estimates: Sequence[ShrinkingEstimate], smallest: Iterable[int | None]
) -> list[int]:
    """Return each estimate's first world, doubled until all the answers are passed.

    Where a plan has no answer they go to 1,024, so that its line is seen to stay above the limit.
    """
    answers = [_MOST // 2 if world is None else world for world in smallest]
    last = max(2 * world for world in (*answers, _LEAST // 2))
    return sorted({world for estimate in estimates for world in _doubled(estimate.step, last)})


def worlds_of(estimate: ShrinkingEstimate, worlds: Iterable[int]) -> list[int]:
    """Leave out those of `worlds` that the estimate has not, such as 4 where shards are of 8."""
    return [world for world in worlds if world % estimate.step == 0]


def curve_worlds(estimate: ShrinkingEstimate, worlds: Sequence[int]) -> list[int]:
    """Return the estimate's worlds from the first of `worlds` to the last, as close as a curve."""
    first, last, step = min(worlds), max(worlds), estimate.step
    world, points = float(first), set(worlds_of(estimate, worlds))
    while world <= last:
        points.add(max(1, round(world / step)) * step)
        world *= 2 ** (1 / _POINTS_OF_A_DOUBLING)
    return sorted(points)


def _doubled(first: int, last: int) -> list[int]:
    worlds = [first]
    while worlds[-1] < last:
        worlds.append(2 * worlds[-1])
    return worlds
