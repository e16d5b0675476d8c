"""A series of samples that never grows beyond a bound, and keeps its extremes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


def thinned(
    at: Sequence[int],
    height: Callable[[int], int],
    most: int,
    needed: Collection[int] = (),
) -> list[int]:
    """Return which samples to keep, as places in `at`: about `most`, and all of `needed`.

    The axis is cut into equal stretches, and of each the highest and the lowest sample stay, the
    earlier of equal ones: so the same run is thinned out in the same way, and no peak of the whole
    is lost. The first and the last sample stay too.

    Args:
        at: where each sample lies on the axis, in ascending order.
        height: gives a sample's figure, by its place.
        most: how many to keep, at least 4.
        needed: places that stay in any case.
    """
    if len(at) <= most:
        return list(range(len(at)))
    stretches = max(1, most // 2 - 1)
    first, width = at[0], at[-1] - at[0] + 1
    kept = {0, len(at) - 1, *needed}
    highest: dict[int, int] = {}
    lowest: dict[int, int] = {}
    for place, where in enumerate(at):
        stretch = (where - first) * stretches // width
        if stretch not in highest or height(place) > height(highest[stretch]):
            highest[stretch] = place
        if stretch not in lowest or height(place) < height(lowest[stretch]):
            lowest[stretch] = place
    return sorted(kept.union(highest.values(), lowest.values()))
