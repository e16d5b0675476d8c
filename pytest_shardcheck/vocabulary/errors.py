"""Kinds of failure: a usage error, an unmet expectation, a failed, dead or hung rank, our own."""

from __future__ import annotations

from operator import methodcaller


class ShardcheckError(Exception):
    """Be the base of everything that pytest-shardcheck raises on purpose."""


class UsageError(ShardcheckError):
    """Say that a marker, an option or a call is wrong, and what would be right."""


class UnmetExpectationError(ShardcheckError, AssertionError):
    """Say that what was measured is not what the test expects."""


class RankFailedError(ShardcheckError):
    """Say that the test raised on a rank."""


class DeadRankError(ShardcheckError):
    """Say that a rank died or left before its test was done."""


class HungRankError(DeadRankError):
    """Say that a rank was still running when its time was over."""


class NoValueError(ShardcheckError, RuntimeError):
    """Say that code needs what a tensor holds, in a simulated world, where tensors hold nothing."""


class HarnessError(ShardcheckError):
    """Say that pytest-shardcheck itself is broken: this is never the fault of a test."""


# As __tracebackhide__ of a module: pytest hides our frames where the error is one that we raise on
# purpose, and shows them where it is a defect of ours.
hide_from_users = methodcaller("errisinstance", ShardcheckError)

# In messages they are called what a test imports and xfail(raises=...) names.
for _error in (ShardcheckError, *ShardcheckError.__subclasses__(), HungRankError):
    _error.__module__ = "pytest_shardcheck"
