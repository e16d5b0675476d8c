from __future__ import annotations

import pytest

from pytest_shardcheck.vocabulary import errors


def test_the_kinds_of_failure_are_told_apart() -> None:
    usage, unmet = errors.UsageError, errors.UnmetExpectationError
    failed, dead, harness = errors.RankFailedError, errors.DeadRankError, errors.HarnessError
    kinds = (usage, unmet, failed, dead, harness)
    for kind in kinds:
        assert [other for other in kinds if issubclass(kind, other)] == [kind]
        assert issubclass(kind, errors.ShardcheckError)


def test_an_unmet_expectation_is_an_assertion() -> None:
    with pytest.raises(AssertionError):
        raise errors.UnmetExpectationError


def test_a_hung_rank_is_a_dead_rank() -> None:
    assert issubclass(errors.HungRankError, errors.DeadRankError)
