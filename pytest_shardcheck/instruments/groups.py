"""The process groups of a rank: their ranks, and every name that they answer to.

A group answers to torch's name for it ("0"), its description ("default_pg", what `group_desc=`
said), and each axis that some `DeviceMesh` of the rank gives it, slices, flattened ones and those
made from groups included. The default group answers to "world" too, and to an axis that spans the
world, even where a mesh made a group of its own for that.

Limits: the axes of a mesh that was made from groups by hand, and was gone before the next
collective on a new group, are not known.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_shardcheck.vocabulary.call_log import Stream

from ._torch_private import axes_of, groups_of_rank, is_mesh_of_groups, ranks_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

WORLD: Final = "world"
_UNDESCRIBED: Final = ("", "undefined")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """What a process group is; it keeps no group alive.

    `rank` is this rank's in the group; `known` is torch's own mapping of the ranks, kept so that
    its id is not given to another.
    """

    name: str
    description: str
    ranks: tuple[int, ...]
    rank: int
    size: int
    stream: Stream
    known: dict[int, int] | None = None

    @property
    def own_rank(self) -> int:
        """Return this rank's number in the world."""
        return self.global_rank(self.rank)

    def global_rank(self, rank: int) -> int:
        """Return what a rank of the group is in the world; as it is where torch doesn't say."""
        return self.ranks[rank] if rank < len(self.ranks) else rank

    def one_way(self, sender: int, receiver: int, tag: int) -> Stream:
        """Return the stream of messages from one global rank to another."""
        return Stream(
            name=self.name,
            label=self.stream.label,
            ranks=self.ranks,
            sender=sender,
            receiver=receiver,
            tag=tag,
        )


_groups: dict[int, Group] = {}


def group_of(group: ProcessGroup) -> Group:
    """Return what a process group is; looked up again only for those that torch doesn't list."""
    known = ranks_of(group)
    found = _groups.get(id(known)) if known is not None else None
    if found is None:
        found = _made(group, known)
        if known is not None:
            _groups[id(known)] = found
    return found


def _made(group: ProcessGroup, known: dict[int, int] | None) -> Group:
    name, description = str(group.group_name), str(group.group_desc)
    ranks = tuple(sorted(known, key=known.__getitem__)) if known is not None else ()
    label = name if description in _UNDESCRIBED else description.removeprefix("mesh_")
    return Group(
        name=name,
        description="" if description in _UNDESCRIBED else description,
        ranks=ranks,
        rank=group.rank(),
        size=group.size(),
        stream=Stream(name=name, label=label, ranks=ranks),
        known=known,
    )


class GroupNames:
    """Learn what groups are called, between `start` and `stop`."""

    def __init__(self) -> None:
        """Know no mesh yet."""
        self._axes: dict[str, dict[str, None]] = {}  # a group's name, to those of its axes
        # Meshes whose groups are set after they were made.
        self._unread: list[weakref.ref[DeviceMesh]] = []
        self._seen: dict[int, Group] = {}
        self._default: Group | None = None
        self._init: Any = None

    def start(self) -> None:
        """Take note of every mesh that is made from now on, and of those there are."""
        if dist.is_initialized():
            self._unread = [
                weakref.ref(thing) for thing in gc.get_objects() if type(thing) is DeviceMesh
            ]
        self._init = init = DeviceMesh.__init__
        learn = self._learn_mesh

        def __init__(mesh: DeviceMesh, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            init(mesh, *args, **kwargs)
            learn(mesh)

        setattr(DeviceMesh, "__init__", __init__)  # noqa: B010  # mypy refuses the assignment

    def stop(self) -> None:
        """Leave new meshes alone."""
        setattr(DeviceMesh, "__init__", self._init)  # noqa: B010

    def see(self, group: Group) -> None:
        """Remember a group that is used: it may be destroyed before its names are asked for."""
        if id(group) not in self._seen:
            self._seen[id(group)] = group
            self._read()

    def axes(self, group: Group) -> tuple[str, ...]:
        """Return all names of a group but its own: "world" first, its description last."""
        self._read()
        names = dict(self._axes.get(group.name, {}))
        if self._default is not None and group.name == self._default.name:
            for other in self._seen.values():
                if self._spans_the_world(other):
                    names.update(self._axes.get(other.name, {}))
            names = {WORLD: None, **names}
        elif names and self._spans_the_world(group):
            names = {WORLD: None, **names}
        if group.description:
            names[group.description] = None
        return tuple(names)

    def all(self) -> tuple[str, ...]:
        """Return every name of every group of this rank, also of those that were destroyed."""
        self._read()
        for group in groups_of_rank():
            self.see(group_of(group))
        names: dict[str, None] = {}
        for known in self._seen.values():
            names.update(dict.fromkeys((*self.axes(known), known.name)))
        return tuple(names)

    def _learn_mesh(self, mesh: DeviceMesh) -> None:
        self._unread.append(weakref.ref(mesh))
        self._read()

    def _read(self) -> None:
        """Take the axes of the meshes that have their groups by now."""
        waiting = []
        for reference in self._unread:
            mesh = reference()
            if mesh is None:
                continue
            if not is_mesh_of_groups(mesh):
                waiting.append(reference)
            for axis, name in axes_of(mesh):
                self._axes.setdefault(name, {})[axis] = None
        self._unread = waiting
        world = dist.group.WORLD
        if world is not None:
            self._default = group_of(world)
            self._seen.setdefault(id(self._default), self._default)

    def _spans_the_world(self, group: Group) -> bool:
        return self._default is not None and set(group.ranks) == set(self._default.ranks)
