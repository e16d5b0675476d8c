"""What one pair of markers can judge: one `Measure` a noun, one noun a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_shardcheck.expectations.narrowing import Narrowing
    from pytest_shardcheck.vocabulary.readings import Reading, StateBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Hold what a reading has for one argument; `missing` says why an amount of None is None."""

    amount: int | None
    breakdown: StateBytes
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """Describe the markers `noun` (exact) and `max_noun` (a ceiling).

    `positional` is the argument that a bare value means. `later` are words that this version
    knows and can't measure. A ceiling above zero on an argument in `vacuous_at_zero` has judged
    nothing where the figure was 0 on every rank.
    """

    noun: str
    arguments: tuple[str, ...]
    narrowings: tuple[str, ...]
    positional: str
    later: tuple[str, ...]
    vacuous_at_zero: tuple[str, ...]
    parse_amount: Callable[[object], int]
    read: Callable[[Reading, str, Narrowing], Figure]
