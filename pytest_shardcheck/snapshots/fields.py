"""Fields of a kept value: named by `only=`, `exclude=` and `tolerance=`, and found by their path.

A field is a name on the path, or several with dots between: "peak", "memory.peak", "all_reduce".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final, NamedTuple, TypeAlias

from pytest_shardcheck.expectations.usage import suggestion
from pytest_shardcheck.expectations.values import Tolerance, parse_tolerance
from pytest_shardcheck.snapshots.figures import COUNTS, READING_PATHS
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import parse_size

Path: TypeAlias = tuple[str, ...]

_MOST_LISTED: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What of a value is held against the recording, and how closely.

    `tolerances` maps fields to an amount or a share of what was recorded; "" is every field.
    `counted`: the value is a reading's, whose counts are exact unless a tolerance names them.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    counted: bool = False

    def keeps(self, path: Path) -> bool:
        """Tell whether what lies at `path` is kept and compared."""
        if self.only and not any(matches(name, path) for name in self.only):
            return False
        return not any(matches(name, path) for name in self.exclude)

    def tolerance(self, path: Path, default: Tolerance) -> Tolerance:
        """Return the tolerance at `path`: the closest field's, else the call's, else `default`."""
        named = [name for name in self.tolerances if name and matches(name, path)]
        if named:
            return self.tolerances[max(named, key=lambda name: _closeness(name, path))]
        if self.counted and path[-1:] and path[-1] in COUNTS:
            return 0
        return self.tolerances.get("", default)

    def to_text(self) -> dict[str, str]:
        """Return the tolerances as text that crosses processes."""
        return {name: str(tolerance) for name, tolerance in self.tolerances.items()}


def tolerances_from_text(texts: Mapping[str, str]) -> dict[str, Tolerance]:
    """Return the tolerances that `Rules.to_text` wrote."""
    return {name: Fraction(text) if "/" in text else int(text) for name, text in texts.items()}


def matches(name: str, path: Path) -> bool:
    """Tell whether a field's names stand on a path, side by side."""
    return _closeness(name, path) > (0, 0)


def _closeness(name: str, path: Path) -> tuple[int, int]:
    """Return how far down a path a field reaches, and of how many names it is; zeros: it does not.

    "peak" is closer to memory.peak than "memory", and "memory.peak" than "peak".
    """
    # A name may have dots of its own: that of a parameter.
    reached = (
        (end, end - start)
        for end in range(1, len(path) + 1)
        for start in range(end)
        if ".".join(path[start:end]) == name
    )
    return max(reached, default=(0, 0))


class Asked(NamedTuple):
    """Hold what a call of `shardcheck.snapshot` was given to say of fields.

    `only` and `exclude` are a field or several. `tolerance` is an amount ("1 kB", 5), a share
    ("1%", 0.01), or a mapping from fields to either.
    """

    only: object = None
    exclude: object = None
    tolerance: object = None


def parse_rules(asked: Asked, value: Any, known: Collection[str] = ()) -> Rules:
    """Read what a call says of the fields of a value.

    Args:
        asked: What it says.
        value: What is kept of it, as JSON has it.
        known: Names that are right although this value has no such field: a reading's.

    Raises:
        UsageError: A field that the value lacks, a tolerance that is none, or nothing is left.
    """
    paths = [path for path, _ in leaves(value)]
    words = {*known, *(part for path in paths for part in path)}
    rules = Rules(
        only=_fields("only", asked.only, paths, words, known),
        exclude=_fields("exclude", asked.exclude, paths, words, known),
        tolerances=_tolerances(asked.tolerance, paths, words, known),
        counted=bool(known),
    )
    if paths and not any(map(rules.keeps, paths)):
        raise UsageError(
            f"shardcheck.snapshot(only={asked.only!r}, exclude={asked.exclude!r}): nothing is left"
        )
    return rules


def _fields(
    argument: str, given: object, paths: list[Path], words: set[str], known: Collection[str]
) -> tuple[str, ...]:
    if given is None:
        return ()
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Iterable) or isinstance(names, Mapping):
        raise UsageError(f"shardcheck.snapshot({argument}={given!r}): a field or several expected")
    return tuple(_field(argument, name, paths, words, known) for name in names)


def _field(
    argument: str, name: object, paths: list[Path], words: set[str], known: Collection[str]
) -> str:
    if not isinstance(name, str):
        raise UsageError(f"shardcheck.snapshot({argument}={name!r}): a field is a str")
    if any(matches(name, path) for path in (*paths, *(READING_PATHS if known else ()))):
        return name
    there = list(dict.fromkeys(".".join(path[:2]) for path in paths))
    listed = ", ".join(there[:_MOST_LISTED]) + (", ..." if len(there) > _MOST_LISTED else "")
    raise UsageError(
        f"shardcheck.snapshot({argument}={name!r}): there is no such field"
        f"{suggestion(name, words)}; there are {listed or 'none'}"
    )


def _tolerances(
    given: object, paths: list[Path], words: set[str], known: Collection[str]
) -> dict[str, Tolerance]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {"": _tolerance(given)}
    return {
        _field("tolerance", name, paths, words, known): _tolerance(amount)
        for name, amount in given.items()
    }


def _tolerance(given: object) -> Tolerance:
    try:
        return parse_tolerance(given, parse_size)
    except UsageError as error:
        raise UsageError(f"shardcheck.snapshot(tolerance={given!r}): {error}") from None


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield what a value is made of, with the way to it; an empty list or dict is one thing."""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list) and value:
        for at, item in enumerate(value):
            yield from leaves(item, (*path, f"[{at}]"))
    else:
        yield path, value


def pruned(value: Any, rules: Rules, path: Path = ()) -> Any:
    """Return a value without what the rules leave out; a list stays whole, or its places move."""
    if not isinstance(value, Mapping) or not value:
        return value
    return {
        name: pruned(item, rules, (*path, name))
        for name, item in value.items()
        if any(rules.keeps(leaf) for leaf, _ in leaves(item, (*path, name)))
    }
