"""The words of a usage error: which test, marker and argument, what was given, what is right."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Site:
    """Name a use of a marker: the test or the call, and the marker."""

    where: str
    marker: str

    def error(self, problem: str) -> UsageError:
        """Build the error for the marker as a whole."""
        return UsageError(f"{self.where}: {self.marker}(...) {problem}.")

    def error_at(self, argument: str, given: object, problem: object) -> UsageError:
        """Build the error for `argument=given`."""
        return UsageError(f"{self.where}: {self.marker}({argument}={given!r}): {problem}.")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'step'?)" where a known word is close, and "" where none is."""
    close = get_close_matches(word, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
