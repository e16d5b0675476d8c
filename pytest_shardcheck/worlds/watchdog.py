"""What the session can find out about a rank that does not answer. Runs in the session."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pytest_shardcheck.vocabulary.call_log import ANYONE, Stream
from pytest_shardcheck.vocabulary.ranks import fold_ranks
from pytest_shardcheck.worlds import agreement, clock, progress
from pytest_shardcheck.worlds.orders import DUMP_SIGNAL, progress_path, ring_path, stack_path
from pytest_shardcheck.worlds.rank_state import RankState
from pytest_shardcheck.worlds.ring import Event, read, read_last

# A rank that is stopped (SIGSTOP) or in an uninterruptible call never writes its stack.
_STACK_TIMEOUT_S = 2.0
# Frames that every dump has.
_BELOW: Final = (
    "/_pytest/",
    "/pluggy/",
    "/pytest_shardcheck/_compat",
    "/pytest_shardcheck/worlds/",
    "<frozen runpy>",
    'File "<string>"',
    "Extension modules:",
)
_INSTRUMENTS: Final = "/pytest_shardcheck/instruments/"
# These call what the test called, and wait with it.
_PASSING_ON: Final = (
    "c10d_tap.py",
    "dispatch.py",
    "saved_hooks.py",
    "hook_stack.py",
    "brackets.py",
)


def cpu_time_ns(pid: int) -> int | None:
    """Return how long the main thread of a process has run; None where that can't be known."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
    return None


def is_waiting(pid: int) -> bool:
    """Tell whether the main thread of a process sleeps; a runnable one only lacks a core."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "SD"
    return False


def dump_stacks(directory: Path, pids: Mapping[int, int]) -> dict[int, str]:
    """Have the ranks (rank to process id) write their Python stacks; return those that did.

    Waits for the evidence, not for a time: until each file has its last line and grows no more.
    """
    before = {rank: _size(stack_path(directory, rank)) for rank in pids}
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, DUMP_SIGNAL)
    deadline = clock.now() + _STACK_TIMEOUT_S
    last: dict[int, int] = {}
    while clock.now() < deadline:
        sizes = {rank: _size(stack_path(directory, rank)) for rank in pids}
        if sizes == last and all(sizes[rank] > before[rank] for rank in pids):
            break
        last = sizes
        time.sleep(0.02)
    return {rank: text for rank in pids if (text := stack_text(directory, rank))}


def stack_text(directory: Path, rank: int) -> str:
    """Return what faulthandler wrote for a rank, without the frames of pytest and of ours."""
    with contextlib.suppress(OSError):
        return _user_frames(stack_path(directory, rank).read_text(errors="replace"))
    return ""


def last_collectives(directory: Path, ranks: Sequence[int], *, of_hung: bool = False) -> list[str]:
    """Return the ranks' last collectives side by side; nothing where none was issued.

    The first line says where the ranks disagree, if what is left of their calls shows that.
    ``of_hung``: they wait for each other.
    """
    events = _events(directory, ranks)
    if not any(events.values()):
        return []
    return _side_by_side(events, _disagreement(events, of_hung=of_hung))


def _side_by_side(events: Mapping[int, Sequence[Event]], disagreement: list[str]) -> list[str]:
    lines = [*disagreement, "Last collectives:"]
    for rank, its in events.items():
        lines.append(f"  rank {rank}: {', '.join(map(_name, its[-4:])) or 'none'}")
    return lines + _who_is_behind(events)


def disagreeing_collectives(directory: Path, ranks: Sequence[int]) -> list[str]:
    """Return the same where ranks disagree in a collective, and nothing where they do not."""
    events = _events(directory, ranks)
    found = _disagreement(events, of_hung=False)
    return _side_by_side(events, found) if found else []


def last_event(directory: Path, rank: int) -> str:
    """Return the last collective of a rank in words."""
    events = read(ring_path(directory, rank))
    return f"Its last collective was {_name(events[-1])}." if events else "It issued no collective."


def what_ranks_do(directory: Path, states: Sequence[RankState]) -> str:
    """Return each rank's phase, step and last collective in one line; ranks may do the same.

    For people who wait: a call that is being written may be missing.
    """
    doing: dict[str, list[int]] = {}
    for state in states:
        event = read_last(ring_path(directory, state.rank))
        called = "no collective yet" if event is None else _name(event)
        step = progress.read(progress_path(directory, state.rank))
        what = ", ".join(filter(None, (state.phase, step, called)))
        doing.setdefault(what, []).append(state.rank)
    return "; ".join(f"{fold_ranks(ranks)} in {what}" for what, ranks in doing.items())


def _events(directory: Path, ranks: Sequence[int]) -> dict[int, list[Event]]:
    return {rank: read(ring_path(directory, rank)) for rank in ranks}


def _disagreement(events: Mapping[int, Sequence[Event]], *, of_hung: bool) -> list[str]:
    calls = {
        rank: agreement.calls_of_events((event.number, event.descriptor) for event in its)
        for rank, its in events.items()
    }
    found = agreement.differences(calls)
    if of_hung and not found and (crossed := agreement.crossing(calls)):
        found = [crossed]
    return [*found, agreement.ADVICE] if found else []


def _who_is_behind(events: Mapping[int, Sequence[Event]]) -> list[str]:
    """Compare how far each rank came in each stream: the one that is behind keeps the others."""
    lines = []
    streams = dict.fromkeys(event.descriptor.stream for its in events.values() for event in its)
    for stream in sorted(streams, key=lambda stream: stream.label):
        ahead = {
            rank: event
            for rank, its in events.items()
            if (event := _last_of(stream, its)) is not None
        }
        members = [rank for rank in agreement.members(stream) if rank in events]
        numbers = {rank: ahead[rank].number if rank in ahead else 0 for rank in members}
        furthest = max(numbers, key=lambda rank: numbers[rank], default=-1)
        behind = [rank for rank, number in numbers.items() if number < numbers[furthest]]
        if behind:
            gaps = "; ".join(
                f"rank {rank} is {numbers[furthest] - numbers[rank]} behind" for rank in behind
            )
            lines.append(f"  rank {furthest} waits in {_name(ahead[furthest])}; {gaps}.")
    return lines


def _last_of(stream: Stream, events: Sequence[Event]) -> Event | None:
    return next((e for e in reversed(events) if e.number and e.descriptor.stream == stream), None)


def _name(event: Event) -> str:
    stream = event.descriptor.stream
    peer = ""
    if event.name == "send":
        peer = f" to rank {stream.receiver}"
    elif event.name == "recv":
        peer = " from anyone" if stream.sender == ANYONE else f" from rank {stream.sender}"
    group = "" if event.group == "default_pg" else f" of group {event.group}"
    number = f" #{event.number}" if event.number else " that was refused"
    unfinished = "" if event.returned else " (not returned)"
    return f"{event.name}{number}{peer}{group}{unfinished}"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _user_frames(text: str) -> str:
    """Drop the frames below the test: they are the same in every dump and say nothing.

    Ours are dropped too, unless one of them is where a thread is: then it is we who hang.
    """
    lines = []
    innermost = False
    for line in text.splitlines():
        hidden = any(part in line for part in _BELOW)
        ours = _INSTRUMENTS in line and not line.partition(_INSTRUMENTS)[2].startswith(_PASSING_ON)
        if not hidden and (_INSTRUMENTS not in line or (ours and innermost)):
            lines.append(line)
        innermost = line.endswith("(most recent call first):")
    return "\n".join(lines).strip()
