"""The functions that `shardcheck.check` takes, one for each measuring marker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_shardcheck.expectations.parse import parse_expectation

if TYPE_CHECKING:
    from pytest_shardcheck.expectations.expectation import Expectation

_WHERE = "shardcheck.check"


# Arguments are not spelt out: one that the marker refuses, None and a misspelt name among them,
# must be refused here with the marker's own message.
def memory(*peak: object, **arguments: object) -> Expectation:
    """Expect exact bytes, as the marker `memory` does. Raises UsageError as it does."""
    return parse_expectation("memory", peak, arguments, where=_WHERE, level=0)


def max_memory(*peak: object, **arguments: object) -> Expectation:
    """Expect no more than these bytes, as `max_memory` does. Raises UsageError as it does."""
    return parse_expectation("max_memory", peak, arguments, where=_WHERE, level=0)


def collectives(*args: object, **arguments: object) -> Expectation:
    """Expect exactly these calls and no others, as the marker `collectives` does."""
    return parse_expectation("collectives", args, arguments, where=_WHERE, level=0)


def max_collectives(*args: object, **arguments: object) -> Expectation:
    """Expect no more calls or bytes than these, as `max_collectives` does."""
    return parse_expectation("max_collectives", args, arguments, where=_WHERE, level=0)


def saved_activations(*args: object, **arguments: object) -> Expectation:
    """Expect autograd to hold exactly this much, as `saved_activations` does."""
    return parse_expectation("saved_activations", args, arguments, where=_WHERE, level=0)


def max_saved_activations(*args: object, **arguments: object) -> Expectation:
    """Expect autograd to hold no more than this, as `max_saved_activations` does."""
    return parse_expectation("max_saved_activations", args, arguments, where=_WHERE, level=0)
