from __future__ import annotations

import pytest

from pytest_shardcheck.vocabulary import fold_numbers, fold_ranks


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([], "no rank"),
        ([3], "rank 3"),
        ([0, 1], "ranks 0-1"),
        ([0, 2, 3], "ranks 0, 2-3"),
        ([3, 0, 1, 2, 7, 9, 8], "ranks 0-3, 7-9"),
        ([1, 1], "rank 1"),
        ([64, 9, 1, 65, 9], "ranks 1, 9, 64-65"),
    ],
)
def test_ranks_are_folded(ranks: list[int], words: str) -> None:
    assert fold_ranks(ranks) == words


def test_numbers_are_folded_without_a_word() -> None:
    assert fold_numbers([3, 1, 1, 2, 9]) == "1-3, 9"
