"""Ask the session's plugins what they know of a framework. Runs in a rank."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from pytest_shardcheck.vocabulary.frameworks import checked_phases

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_shardcheck.vocabulary.frameworks import Held


class TaughtFrameworks:
    """The answers of all `pytest_shardcheck_held` and `pytest_shardcheck_phases` hooks."""

    def __init__(self, hooks: Any) -> None:
        """Ask these hooks: those of the item, so that a folder's conftest counts in its folder."""
        self._hooks = hooks

    def held(self, thing: object) -> list[Held] | None:
        """Return what all plugins found in a thing; None where it is nobody's."""
        answers = self._hooks.pytest_shardcheck_held(thing=thing)
        return list(chain.from_iterable(answers)) if answers else None

    def phases(self, thing: object) -> Mapping[str, str]:
        """Return the methods of a thing that are a phase."""
        methods: dict[str, str] = {}
        for answer in self._hooks.pytest_shardcheck_phases(thing=thing):
            methods.update(checked_phases(answer, thing))
        return methods
