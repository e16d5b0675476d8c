"""Hold the ranks' calls against each other: the first one of each group on which they disagree.

All ranks of a group must make the same collectives in the same order, with the same dtype, sizes
and root; what one rank sends another must receive. A backend need not notice: gloo adds int32 to
float32 and returns garbage. Pure functions over plain data.

What must be equal: for a barrier nothing but that it is one; for an all_to_all what rank i sends
to j and what j receives from i; for a message its dtype and size, in order for each sender,
receiver and tag; else the dtype and the elements of each tensor or of each rank's part.

Limits: shapes may differ where the numbers of elements do not, and so may the reduction. Messages
to a rank that receives from anyone are not compared. Nothing is said of a group in which a call
failed after it was issued, nor of calls that were refused: their test expected that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Final

from pytest_shardcheck.vocabulary.call_log import ANYONE, CallLog, Descriptor, Stream
from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.vocabulary.units import format_bytes

ADVICE: Final = (
    "All ranks of a group must make the same calls in the same order, with the same dtype and "
    "sizes: look for a branch on the rank, a cast, or an uneven batch at these lines."
)
_MOST_SHAPES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """One call, and from where it was made, as far as that is known."""

    descriptor: Descriptor
    module: str = ""
    line: str = ""

    def __str__(self) -> str:
        """Say what was called and where: "all_reduce of float32 [256] (1,024 B) at train.py:12"."""
        return f"{_what(self.descriptor)}{self.place}"

    @property
    def place(self) -> str:
        """Return where the call was made, to follow what it is."""
        line = f" at {self.line}" if self.line else ""
        return f"{line} in {self.module}" if self.module else line


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The calls of one rank by stream and number; `complete` where none is missing."""

    streams: Mapping[Stream, Mapping[int, Made]] = field(default_factory=dict)
    complete: bool = False
    failed: bool = False


def calls_of_log(log: CallLog) -> Calls:
    """Return all calls of a rank that ended its test."""
    streams: dict[Stream, dict[int, Made]] = {}
    made = [
        Made(descriptor=log.descriptors[site.descriptor], module=site.module, line=site.line)
        for site in log.sites
    ]
    for place in log.calls:
        stream = streams.setdefault(made[place].descriptor.stream, {})
        stream[len(stream) + 1] = made[place]
    return Calls(streams=streams, complete=True, failed=log.failed)


def calls_of_events(events: Iterable[tuple[int, Descriptor]]) -> Calls:
    """Return the last calls of a rank, each with its number; 0 is that of a refused one."""
    streams: dict[Stream, dict[int, Made]] = {}
    for number, descriptor in events:
        if number:
            streams.setdefault(descriptor.stream, {})[number] = Made(descriptor=descriptor)
    return Calls(streams=streams)


def differences(ranks: Mapping[int, Calls]) -> list[str]:
    """Return the first disagreement of each group in words, in the order of the groups' use."""
    found: dict[tuple[str, tuple[int, ...]], str] = {}
    for stream in dict.fromkeys(stream for calls in ranks.values() for stream in calls.streams):
        group = (stream.name, stream.ranks)
        involved = {rank: ranks[rank] for rank in members(stream) if rank in ranks}
        if group in found or any(ranks[r].failed for r in stream.ranks if r in ranks):
            continue
        if len(involved) > 1 and (difference := _difference(stream, involved)):
            found[group] = f"ranks disagree in {_group(stream)}: {difference}"
    return list(found.values())


def crossing(ranks: Mapping[int, Calls]) -> str | None:
    """Return how two ranks wait for each other: each is ahead in a group where the other is behind.

    Ranks that use their common groups in the same order can't come to that: the one that is
    further is so in all of them. Only for ranks that hang.
    """
    streams = [
        stream
        for stream in dict.fromkeys(stream for calls in ranks.values() for stream in calls.streams)
        if stream.sender is None
    ]
    for first, second in permutations(streams, 2):
        for one, other in permutations(set(first.ranks) & set(second.ranks) & set(ranks), 2):
            if _is_ahead(ranks, first, one, other) and _is_ahead(ranks, second, other, one):
                return (
                    f"ranks disagree in the order of two groups: {_waits(ranks, first, one)}, "
                    f"and {_waits(ranks, second, other)}"
                )
    return None


def _is_ahead(ranks: Mapping[int, Calls], stream: Stream, one: int, other: int) -> bool:
    return _last(ranks[one], stream) > _last(ranks[other], stream)


def _last(calls: Calls, stream: Stream) -> int:
    return max(calls.streams.get(stream, {}), default=0)


def _waits(ranks: Mapping[int, Calls], stream: Stream, rank: int) -> str:
    number = _last(ranks[rank], stream)
    made = ranks[rank].streams[stream][number]
    return f"rank {rank} waits in call #{number} of {_group(stream)}, {made}"


def members(stream: Stream) -> Sequence[int]:
    """Return the ranks that a stream's calls must come from, as far as that is known."""
    if stream.sender is None or stream.receiver is None:
        return stream.ranks
    return () if stream.sender == ANYONE else (stream.sender, stream.receiver)


def _difference(stream: Stream, ranks: Mapping[int, Calls]) -> str | None:
    if stream.sender is not None and _receives_from_anyone(stream, ranks):
        return None
    numbered = {rank: calls.streams.get(stream, {}) for rank, calls in ranks.items()}
    for number in sorted({number for its in numbered.values() for number in its}):
        made = {rank: its[number] for rank, its in numbered.items() if number in its}
        text = _unlike(stream, made)
        if text is None and all(calls.complete for calls in ranks.values()):
            missing = [rank for rank in ranks if rank not in made]
            text = _missing(stream, made, numbered, missing) if missing else None
        if text is not None:
            return f"{_call(stream, number)} is {text}"
    return None


def _receives_from_anyone(stream: Stream, ranks: Mapping[int, Calls]) -> bool:
    receiver = ranks.get(stream.receiver) if stream.receiver is not None else None
    return receiver is not None and any(
        (other.name, other.sender) == (stream.name, ANYONE) for other in receiver.streams
    )


def _unlike(stream: Stream, made: Mapping[int, Made]) -> str | None:
    """Return how the ranks' calls of one number differ."""
    compared = {rank: _compared(one.descriptor) for rank, one in made.items()}
    if len(set(compared.values())) > 1:
        return _side_by_side(made)
    operations = {one.descriptor.operation for one in made.values()}
    return _unlike_parts(stream, made) if operations == {"all_to_all"} else None


def _compared(descriptor: Descriptor) -> object:
    operation = descriptor.operation
    if operation == "barrier":
        return operation
    if operation == "all_to_all":
        return operation, descriptor.dtype
    if operation in ("send", "recv"):
        return descriptor.dtype, descriptor.parts
    return operation, descriptor.dtype, descriptor.parts, descriptor.root


def _unlike_parts(stream: Stream, made: Mapping[int, Made]) -> str | None:
    """Return the first two ranks of an all_to_all of which one expects what the other won't send.

    Where some parts are not known (too long for the ring) there is nothing to compare.
    """
    place = {rank: at for at, rank in enumerate(stream.ranks)}
    for sender, sent in made.items():
        for receiver, received in made.items():
            parts, expected = sent.descriptor.parts, received.descriptor.received
            if not parts or not expected or parts[place[receiver]] == expected[place[sender]]:
                continue
            return (
                f"all_to_all of {sent.descriptor.dtype}: rank {sender} sends "
                f"{parts[place[receiver]]} elements to rank {receiver}{sent.place}, which expects "
                f"{expected[place[sender]]}{received.place}"
            )
    return None


def _missing(
    stream: Stream,
    made: Mapping[int, Made],
    numbered: Mapping[int, Mapping[int, Made]],
    missing: Sequence[int],
) -> str:
    rank = missing[0]
    last = max(numbered[rank], default=0)
    before = (
        f"the last one there is #{last}, {numbered[rank][last]}" if last else "there is none there"
    )
    return f"{_side_by_side(made)}, and missing on {fold_ranks(missing)}: {before}"


def _side_by_side(made: Mapping[int, Made]) -> str:
    by_text: dict[str, list[int]] = {}
    for rank, one in made.items():
        by_text.setdefault(str(one), []).append(rank)
    return ", ".join(f"{text} on {fold_ranks(ranks)}" for text, ranks in by_text.items())


def _group(stream: Stream) -> str:
    return "the default group" if stream.label == "default_pg" else f"group {stream.label}"


def _call(stream: Stream, number: int) -> str:
    if stream.sender is None:
        return f"call #{number}"
    tag = f" with tag {stream.tag}" if stream.tag else ""
    return f"message #{number} from rank {stream.sender} to rank {stream.receiver}{tag}"


def _what(descriptor: Descriptor) -> str:
    if descriptor.operation == "barrier":
        return "barrier"
    shapes = ", ".join(_shapes(descriptor.shapes))
    moved = f"{descriptor.dtype} {shapes} ({format_bytes(descriptor.bytes)})"
    root = "" if descriptor.root is None else f" with root {descriptor.root}"
    return f"{descriptor.operation} of {moved}{root}"


def _shapes(shapes: Sequence[tuple[int, ...]]) -> Iterator[str]:
    """Yield shapes in words, the first few where there are many."""
    for shape in shapes[:_MOST_SHAPES]:
        yield f"[{', '.join(map(str, shape))}]"
    if len(shapes) > _MOST_SHAPES:
        yield f"and {len(shapes) - _MOST_SHAPES} more"
