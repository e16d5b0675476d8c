"""A recording held against what the ranks now have. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pytest_shardcheck.expectations.values import Tolerance, tolerance_of
from pytest_shardcheck.snapshots.document import Document
from pytest_shardcheck.snapshots.fields import Path, Rules, leaves, pruned
from pytest_shardcheck.snapshots.merge import rules_of, unfold
from pytest_shardcheck.vocabulary.snapshots import RankSnapshot

# A path to the calls of one operation over one group ends so, before phase and size.
_CALLS: Final = "calls"
_CALLS_AT: Final = 3
_COLLECTIVES: Final = "collectives"

Sizes: TypeAlias = Mapping[int, Sequence[str]]  # payload to the modules that called with it


class _Absent:
    """What is not there; prints as in a table."""

    def __repr__(self) -> str:
        return "-"


ABSENT: Final = _Absent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Hold one figure of one rank that is not as recorded; ABSENT is what is not there."""

    rank: int
    path: Path
    recorded: Any
    now: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsDifference:
    """Hold calls of one rank that are not as recorded.

    `gone` and `new` map a payload in bytes to as many modules as there are fewer or more calls of
    it. Where calls were recorded of the same modules, any of them may be meant.
    """

    rank: int
    group: str
    operation: str
    phase: str
    gone: Sizes
    new: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Hold everything in which one snapshot differs; `region` is None where it is no reading's.

    `missing_ranks` have a recording and took none now, `new_ranks` the other way round;
    `unrecorded` says that there is no recording of this name, `untaken` that no rank took it.
    """

    name: str
    region: str | None = None
    occurrence: int = 0
    differences: tuple[Difference, ...] = ()
    calls: tuple[CallsDifference, ...] = ()
    missing_ranks: tuple[int, ...] = ()
    new_ranks: tuple[int, ...] = ()
    unrecorded: bool = False
    untaken: bool = False


def compare(
    recorded: Document, taken: Sequence[RankSnapshot], default: Tolerance
) -> list[Mismatch]:
    """Return what differs, by name; nothing where every figure is as recorded.

    `default` is the tolerance of readings where a call says none.
    """
    by_name: dict[str, dict[int, RankSnapshot]] = {}
    for one in taken:
        by_name.setdefault(one.name, {})[one.rank] = one
    found = [_compare_one(recorded, by_name[name], default) for name in sorted(by_name)]
    gone = [name for name in sorted(recorded.snapshots) if name not in by_name]
    return [*filter(None, found), *(Mismatch(name=name, untaken=True) for name in gone)]


def _compare_one(
    recorded: Document, taken: Mapping[int, RankSnapshot], default: Tolerance
) -> Mismatch | None:
    first = taken[min(taken)]
    place = {"name": first.name, "region": first.region, "occurrence": first.occurrence}
    if first.name not in recorded.snapshots:
        return Mismatch(**place, unrecorded=True)  # type: ignore[arg-type]  # plain kwargs
    before = unfold(recorded.snapshots[first.name])
    differences: list[Difference] = []
    calls: list[CallsDifference] = []
    for rank in sorted(before.keys() & taken.keys()):
        rules = rules_of(taken[rank])
        old, new = pruned(before[rank], rules), pruned(taken[rank].value, rules)
        differences += _differences(rank, old, new, rules, default)
        calls += _calls_differences(rank, old, new, rules, default)
    mismatch = Mismatch(
        **place,  # type: ignore[arg-type]
        differences=tuple(differences),
        calls=tuple(calls),
        missing_ranks=tuple(sorted(before.keys() - taken.keys())),
        new_ranks=tuple(sorted(taken.keys() - before.keys())),
    )
    return mismatch if mismatch != Mismatch(**place) else None  # type: ignore[arg-type]


def _differences(
    rank: int, old: Any, new: Any, rules: Rules, default: Tolerance
) -> Iterator[Difference]:
    before, now = dict(leaves(old)), dict(leaves(new))
    paths = list(dict.fromkeys((*now, *before)))
    parents = {path[:-1]: at for at, path in reversed(list(enumerate(paths)))}
    for path in sorted(paths, key=lambda path: parents[path[:-1]]):
        if rules.counted and path[_CALLS_AT : _CALLS_AT + 1] == (_CALLS,):
            continue
        nothing = 0 if rules.counted and _is_zero_where_absent(path) else ABSENT
        recorded, measured = before.get(path, nothing), now.get(path, nothing)
        # A tolerance of the session is one of measured bytes, not of what a test computes itself.
        tolerance = rules.tolerance(path, default if rules.counted else 0)
        if not _is_close(recorded, measured, tolerance):
            yield Difference(rank=rank, path=path, recorded=recorded, now=measured)


def _is_zero_where_absent(path: Path) -> bool:
    return path[0:1] == (_COLLECTIVES,) or path[:2] == ("memory", "at_peak")


def _is_close(recorded: Any, now: Any, tolerance: Tolerance) -> bool:
    if is_number(recorded) and is_number(now):
        if recorded == now:
            return True
        # Of ints a share is exact, too: it is a Fraction.
        allowed = tolerance if isinstance(tolerance, int) else abs(recorded) * tolerance
        return bool(abs(now - recorded) <= allowed)
    # The very type: True is no 1.
    return type(recorded) is type(now) and bool(recorded == now)


def is_number(value: Any) -> bool:
    """Tell whether a value is a number; True and False are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _calls_differences(
    rank: int, old: Any, new: Any, rules: Rules, default: Tolerance
) -> Iterator[CallsDifference]:
    """Yield where calls were added, taken away or had another payload."""
    if not rules.counted:
        return
    before, now = _sizes(old), _sizes(new)
    for group, operation, phase in dict.fromkeys((*now, *before)):
        recorded = before.get((group, operation, phase), {})
        measured = now.get((group, operation, phase), {})
        tolerance = rules.tolerance((_COLLECTIVES, group, operation, "bytes"), default)
        if not _are_close(recorded, measured, tolerance):
            yield CallsDifference(
                rank=rank,
                group=group,
                operation=operation,
                phase=phase,
                gone=_more(recorded, measured),
                new=_more(measured, recorded),
            )


def _sizes(value: Any) -> dict[tuple[str, str, str], Sizes]:
    """Return the calls by group, operation and phase."""
    found: dict[tuple[str, str, str], dict[int, list[str]]] = {}
    collectives = value.get(_COLLECTIVES) if isinstance(value, Mapping) else None
    for path, module in leaves(collectives or {}):
        if len(path) == _CALLS_AT + 3 and path[_CALLS_AT - 1] == _CALLS:
            group, operation, _, phase, size, _ = path
            sizes = found.setdefault((group, operation, phase), {})
            sizes.setdefault(int(size), []).append(module)
    return dict(found)


def _are_close(recorded: Sizes, now: Sizes, tolerance: Tolerance) -> bool:
    """Tell whether there are as many calls, and their payloads are close in order of size.

    Which modules call is not what is compared: a module may be renamed.
    """
    before, after = (
        sorted(size for size, modules in sizes.items() for _ in modules)
        for sizes in (recorded, now)
    )
    return len(before) == len(after) and all(
        abs(one - other) <= tolerance_of(one, tolerance)
        for one, other in zip(before, after, strict=True)
    )


def _more(these: Sizes, others: Sizes) -> dict[int, tuple[str, ...]]:
    """Return of which payloads there are more calls, and of which modules these must be."""
    found = {}
    for size, modules in sorted(these.items()):
        known = others.get(size, ())
        more = len(modules) - len(known)
        if more > 0:
            surplus = list((Counter(modules) - Counter(known)).elements())
            found[size] = tuple(surplus[:more])
    return found
