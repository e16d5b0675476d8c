"""Which ranks, worlds, regions, phases, groups and devices a marker speaks of. It must match."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pytest_shardcheck.expectations.usage import suggestion
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.vocabulary.readings import PHASES

if TYPE_CHECKING:
    from pytest_shardcheck.vocabulary.specs import WorldSpec

_DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "meta")


@dataclass(frozen=True, slots=True)
class Indices:
    """Choose ranks by index; a negative one counts from the last rank."""

    indices: tuple[int, ...]

    def select(self, spec: WorldSpec) -> tuple[int, ...]:
        """Return the ranks. Raises LookupError where one of them is not in the world."""
        for index in self.indices:
            if not -spec.size <= index < spec.size:
                raise LookupError(f"rank {index} is not in this world of {_ranks_of(spec)}")
        return tuple(sorted({index % spec.size for index in self.indices}))

    def __str__(self) -> str:
        """Write the choice as a marker does."""
        return str(self.indices[0]) if len(self.indices) == 1 else str(list(self.indices))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Choose ranks by a slice."""

    start: int | None
    stop: int | None
    step: int | None

    def select(self, spec: WorldSpec) -> tuple[int, ...]:
        """Return the ranks. Raises LookupError where there are none."""
        ranks = tuple(sorted(range(spec.size)[self.start : self.stop : self.step]))
        if not ranks:
            raise LookupError(f"the slice holds no rank of this world of {_ranks_of(spec)}")
        return ranks

    def __str__(self) -> str:
        """Write the choice as a marker does."""
        return f"slice({self.start}, {self.stop}, {self.step})"


@dataclass(frozen=True, slots=True)
class Coordinate:
    """Choose the ranks at an index of each named mesh axis; a negative one counts from its end."""

    axes: tuple[tuple[str, int], ...]

    def select(self, spec: WorldSpec) -> tuple[int, ...]:
        """Return the ranks. Raises LookupError where an axis or an index does not exist."""
        wanted = {axis: _index_on(axis, index, spec) for axis, index in self.axes}
        return tuple(
            rank for rank in range(spec.size) if wanted.items() <= spec.coordinate(rank).items()
        )

    def __str__(self) -> str:
        """Write the choice as a marker does."""
        return str(dict(self.axes))


RankChoice: TypeAlias = Indices | Stretch | Coordinate


def _ranks_of(spec: WorldSpec) -> str:
    return fold_ranks(range(spec.size))


def _index_on(axis: str, index: int, spec: WorldSpec) -> int:
    lengths = dict(spec.axes)
    if axis not in lengths:
        axes = ", ".join(f"{name!r} of {length}" for name, length in spec.axes)
        hint = suggestion(axis, lengths)
        raise LookupError(f"the mesh has no axis {axis!r}{hint}; its axes: {axes}")
    if not -lengths[axis] <= index < lengths[axis]:
        raise LookupError(f"index {index} is not on the axis {axis!r} of {lengths[axis]}")
    return index % lengths[axis]


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """Hold what a marker narrows itself to; None is everything."""

    ranks: RankChoice | None = None
    world_sizes: tuple[int, ...] | None = None
    region: str | None = None
    phase: str | None = None
    group: str | None = None
    device: str | None = None

    def select_ranks(self, spec: WorldSpec) -> tuple[int, ...]:
        """Return the ranks that are judged, of a simulated world those that run.

        Raises LookupError where the choice does not match.
        """
        if self.ranks is None:
            return spec.running
        chosen = self.ranks.select(spec)
        running = tuple(rank for rank in chosen if rank in spec.running)
        if not running:
            raise LookupError(
                f"of {fold_ranks(chosen)} none is simulated (only {fold_ranks(spec.running)}); "
                f"name it in world_size(..., ranks=[{chosen[0]}])"
            )
        return running

    def __str__(self) -> str:
        """Write the narrowing as a marker does: "rank=-1, region='step'"."""
        sizes = None if self.world_sizes is None else Indices(self.world_sizes)
        choices = {"rank": self.ranks, "world_size": sizes}
        names = {
            "region": self.region,
            "phase": self.phase,
            "group": self.group,
            "device": self.device,
        }
        written = [f"{name}={given}" for name, given in choices.items() if given is not None]
        written += [f"{name}={given!r}" for name, given in names.items() if given is not None]
        return ", ".join(written)


def parse_rank(given: object) -> RankChoice:
    """Read `rank=`. Raises UsageError where it is none of the accepted forms."""
    if isinstance(given, slice):
        return _parse_stretch(given)
    if isinstance(given, Mapping):
        return _parse_coordinate(given)
    indices = _ints(given)
    if not indices:
        raise UsageError(
            f"{given!r} is not a choice of ranks; expected an index (negative counts from the "
            "last), several, a slice, or a mesh coordinate such as {'pp': -1}"
        )
    return Indices(tuple(sorted(set(indices))))


def _parse_stretch(given: slice) -> Stretch:
    parts = (given.start, given.stop, given.step)
    if given.step == 0 or not all(part is None or _is_int(part) for part in parts):
        raise UsageError(f"{given} is not a slice of ranks; expected ints, and a step other than 0")
    return Stretch(*parts)


def _parse_coordinate(given: Mapping[object, object]) -> Coordinate:
    axes = tuple(
        (axis, index)
        for axis, index in given.items()
        if isinstance(axis, str) and isinstance(index, int) and _is_int(index)
    )
    if not axes or len(axes) != len(given):
        raise UsageError(
            f"{given!r} is not a mesh coordinate; expected an int by axis name, "
            "such as {'pp': -1}"
        )
    return Coordinate(tuple(sorted(axes)))


def parse_world_size(given: object) -> tuple[int, ...]:
    """Read `world_size=`. Raises UsageError where it is not one or several sizes."""
    sizes = _ints(given)
    if not sizes or min(sizes) < 1:
        raise UsageError(f"{given!r} is not a world size; expected an int from 1 on, or several")
    return tuple(sorted(set(sizes)))


def parse_region(given: object) -> str:
    """Read `region=`. Raises UsageError where it is not a name."""
    if not isinstance(given, str) or not given:
        raise UsageError(f"{given!r} is not a region; expected its name, such as 'step'")
    return given


def parse_phase(given: object) -> str:
    """Read `phase=`. Raises UsageError where it is not one of the three."""
    if not isinstance(given, str) or given not in PHASES:
        hint = suggestion(given, PHASES) if isinstance(given, str) else ""
        raise UsageError(f"{given!r} is not a phase{hint}; expected {', '.join(map(repr, PHASES))}")
    return given


def parse_group(given: object) -> str:
    """Read `group=`. Raises UsageError where it is not a name."""
    if not isinstance(given, str) or not given:
        raise UsageError(
            f"{given!r} is not a process group; expected the name of a mesh axis, a group's "
            "description, or 'world'"
        )
    return given


def parse_device(given: object) -> str:
    """Read `device=`. Raises UsageError where it is not a device's name."""
    kind = given.partition(":")[0] if isinstance(given, str) else ""
    if not isinstance(given, str) or kind not in _DEVICES or not _is_device(given):
        raise UsageError(
            f"{given!r} is not a device{suggestion(kind, _DEVICES)}; expected such as 'cpu', "
            "'cuda' (all of the rank's) or 'cuda:0'"
        )
    return given


def _is_device(given: str) -> bool:
    return re.fullmatch(r"[a-z]+(:[0-9]+)?", given) is not None


def _ints(given: object) -> tuple[int, ...]:
    several = given if isinstance(given, list | tuple | range | AbstractSet) else (given,)
    ints = tuple(item for item in several if isinstance(item, int) and _is_int(item))
    return ints if len(ints) == len(several) else ()


def _is_int(given: object) -> bool:
    # A bool is an int to Python, and never an index.
    return isinstance(given, int) and not isinstance(given, bool)
