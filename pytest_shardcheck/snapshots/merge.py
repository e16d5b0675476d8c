"""The values of all ranks → one record, equal ranks folded; and back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pytest_shardcheck.snapshots.fields import Rules, pruned, tolerances_from_text
from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.vocabulary.snapshots import RankSnapshot

_RANKS: Final = re.compile(r"ranks? (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)")


def rules_of(taken: RankSnapshot) -> Rules:
    """Return the rules that a rank sent beside a value."""
    return Rules(
        only=taken.only,
        exclude=taken.exclude,
        tolerances=tolerances_from_text(taken.tolerances),
        counted=taken.region is not None,
    )


def merge(taken: Iterable[RankSnapshot]) -> dict[str, dict[str, Any]]:
    """Return name → ranks in words → what each of these ranks keeps, as a file has it.

    Names are sorted, ranks go up, and what lies below is sorted by name.
    """
    by_name: dict[str, dict[int, Any]] = {}
    for one in taken:
        by_name.setdefault(one.name, {})[one.rank] = pruned(one.value, rules_of(one))
    return {name: fold(by_name[name]) for name in sorted(by_name)}


def fold(by_rank: Mapping[int, Any]) -> dict[str, Any]:
    """Map ranks in words to the value that they share, the lowest rank first."""
    # By text: 1, 1.0 and True are equal to Python, and are not in a file.
    values: dict[str, Any] = {}
    ranks_of: dict[str, list[int]] = {}
    for rank, value in sorted(by_rank.items()):
        text = json.dumps(value, sort_keys=True)
        values[text] = json.loads(text)
        ranks_of.setdefault(text, []).append(rank)
    return {fold_ranks(ranks): values[text] for text, ranks in ranks_of.items()}


def unfold(folded: Mapping[str, Any]) -> dict[int, Any]:
    """Return the value of each rank.

    Raises:
        ValueError: ranks that are not in the words of `fold`, or that come twice.
    """
    by_rank: dict[int, Any] = {}
    for words, value in folded.items():
        for rank in _ranks(words):
            if rank in by_rank:
                raise ValueError(f"rank {rank} comes twice")
            by_rank[rank] = value
    return by_rank


def _ranks(words: str) -> Iterable[int]:
    match = _RANKS.fullmatch(words)
    if match is None:
        raise ValueError(f'{words!r} names no ranks; "rank 0" or "ranks 0, 2-3" would')
    for stretch in match[1].split(", "):
        low, _, high = stretch.partition("-")
        yield from range(int(low), int(high or low) + 1)
