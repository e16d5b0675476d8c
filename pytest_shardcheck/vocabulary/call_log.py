"""What one rank told its process groups in a whole test, to be held against the other ranks'.

A step repeats, so a log is what was said, once each, and the order in which it was said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_shardcheck.vocabulary.plain import Plain

# The sender of what is received from whoever sends it.
ANYONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Name a sequence of calls that must agree: the collectives of a group, or one direction of
    its point-to-point messages with one tag. All ranks are global.

    `label` is what to call the group in a message, `name` torch's own name for it. `sender` is
    None for collectives, `ANYONE` for what is received from anyone.
    """

    name: str
    label: str
    ranks: tuple[int, ...]
    sender: int | None = None
    receiver: int | None = None
    tag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor(Plain):
    """Describe a call by its arguments: equal calls have one descriptor.

    `bytes`, `shapes` and `dtype` are as in `Call`. `parts` are what must be equal on all ranks, in
    elements: a number for each tensor, or for each rank where the parts are uneven; what goes to
    each rank for an all_to_all, and `received` what comes from each. `root` is a global rank.
    `own_bytes` is what an all_to_all leaves where it is.
    """

    operation: str
    stream: Stream
    dtype: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    bytes: int = 0
    own_bytes: int = 0
    parts: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    root: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Say which call was made, by the place of its descriptor in the log, and from where."""

    descriptor: int
    module: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLog(Plain):
    """Hold the calls of one rank in their order, as places in `sites`.

    `failed` says that a call failed after it was issued: the test, which went on, expected that.
    """

    descriptors: tuple[Descriptor, ...] = ()
    sites: tuple[Site, ...] = ()
    calls: tuple[int, ...] = ()
    failed: bool = False
