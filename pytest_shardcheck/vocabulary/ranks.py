"""Ranks in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def fold_ranks(ranks: Iterable[int]) -> str:
    """Name ranks in as few words as possible: "rank 1", "ranks 0, 2-3", "no rank"."""
    distinct = set(ranks)
    if not distinct:
        return "no rank"
    return f"{'ranks' if len(distinct) > 1 else 'rank'} {fold_numbers(distinct)}"


def fold_numbers(numbers: Iterable[int]) -> str:
    """Write numbers as stretches: "0, 2-3"."""
    stretches: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], number)
        else:
            stretches.append((number, number))
    return ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in stretches)
