"""What a framework teaches us: the tensors that it holds, and which of its methods are a phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import UsageError, hide_from_users
from .memory import HELD_CATEGORIES
from .readings import PHASES

__tracebackhide__ = hide_from_users


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A tensor that a framework keeps where torch does not show it, and what it is to a rank.

    Args:
        category: "parameters" (a rank's own shard, or whole ones), "unsharded parameters",
            "gradients", "optimizer state", "buffers" or "communication buffers". Each but the last
            is also state at rest (unsharded parameters as `params`).
        tensor: the tensor itself. Of several that share bytes each byte counts once.
        name: what failures call it.

    Raises:
        UsageError: another category.
    """

    category: str
    tensor: Any
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse what no reading has a place for."""
        if self.category not in HELD_CATEGORIES:
            accepted = ", ".join(map(repr, HELD_CATEGORIES))
            raise UsageError(f"Held(category={self.category!r}): expected one of {accepted}")


class Frameworks(Protocol):
    """What is known of frameworks, asked for each watched thing and for what was found in it."""

    def held(self, thing: object) -> Iterable[Held] | None:
        """Return the tensors that are found in a thing; None where it is nobody's."""

    def phases(self, thing: object) -> Mapping[str, str]:
        """Return the methods of a thing that are a phase: name to `PHASES`."""


class NoFrameworks:
    """Know torch only."""

    def held(self, thing: object) -> None:
        """Know nothing."""

    def phases(self, thing: object) -> Mapping[str, str]:
        """Know nothing."""
        del thing
        return {}


def checked_phases(methods: Mapping[str, str], thing: object) -> Mapping[str, str]:
    """Return what a framework said of a thing's methods.

    Raises:
        UsageError: a phase that there is not, or no such method.
    """
    for name, phase in methods.items():
        what = f"pytest_shardcheck_phases of {type(thing).__qualname__}: {{{name!r}: {phase!r}}}"
        if phase not in PHASES:
            raise UsageError(f"{what}: expected one of {', '.join(map(repr, PHASES))}")
        if not callable(getattr(thing, name, None)):
            raise UsageError(f"{what}: it has no such method")
    return methods
