"""Timelines → a trace in Chrome's JSON format, which Perfetto and chrome://tracing open.

The format is Google's "Trace Event Format". Each rank is a process; regions, phases and the calls
of each group are its threads, memory and saved activations are counters. Times are microseconds
since the first rank's recording began.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.vocabulary.timelines import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_shardcheck.vocabulary.collectives import Call
    from pytest_shardcheck.vocabulary.records import WorldRecord

Event = dict[str, Any]
_REGIONS: Final = 1
_PHASES: Final = 2
_FIRST_GROUP: Final = 3
_LONGEST_NAME: Final = 80


def trace(record: WorldRecord, timelines: Mapping[int, Timeline]) -> dict[str, Any]:
    """Return the trace of one world, as what `json` can write."""
    zero = min((timeline.start_ns for timeline in timelines.values()), default=0)
    events: list[Event] = []
    for _, timeline in sorted(timelines.items()):
        events += _of_rank(timeline, zero)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "test": record.nodeid,
            "world": record.spec.id,
            "outcome": record.outcome,
            "producer": "pytest-shardcheck",
        },
    }


def file_name(nodeid: str) -> str:
    """Return what a test's trace is called: the same in every run, and safe on every system.

    Ids that are alike but for letters that no file may have differ by what ends the name.
    """
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", nodeid.replace(".py::", "-")).strip("-.")
    digest = hashlib.sha256(nodeid.encode()).hexdigest()[:8]
    return f"{words[-_LONGEST_NAME:].lstrip('-.')}-{digest}.json"


def _of_rank(timeline: Timeline, zero: int) -> Iterator[Event]:
    rank, shift = timeline.rank, timeline.start_ns - zero

    def us(time_ns: int) -> float:
        return (time_ns + shift) / 1000

    yield _named("process_name", rank, 0, f"rank {rank}")
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    yield _named("thread_name", rank, _REGIONS, "regions")
    yield _named("thread_name", rank, _PHASES, "phases")
    end_ns = _end_ns(timeline)
    for region in sorted(timeline.regions, key=lambda its: (its.begin_ns, -its.end_ns)):
        name = f"{region.region} (failed)" if region.failed else region.region
        args = {"occurrence": region.occurrence, "begin": region.begin, "end": region.end}
        begin, end = us(region.begin_ns), us(region.end_ns)
        yield _slice(name, "region", rank, _REGIONS, begin, end, args)
    ends = [*(turn.time_ns for turn in timeline.turns[1:]), end_ns]
    for turn, until_ns in zip(timeline.turns, ends, strict=True):
        args = {"operation": turn.at}
        yield _slice(
            turn.phase,
            "phase",
            rank,
            _PHASES,
            us(turn.time_ns),
            us(max(until_ns, turn.time_ns)),
            args,
        )
    yield from _calls(timeline, us)
    yield from _counters(timeline, us)


def _calls(timeline: Timeline, us: Any) -> Iterator[Event]:
    """Yield the calls: a thread for each group, and others where calls overlap."""
    rank = timeline.rank
    threads: dict[tuple[str, int], int] = {}
    free_at: dict[int, float] = {}
    for issued in timeline.calls:
        call = timeline.kinds[issued.kind]
        begin, end = us(issued.time_ns), us(issued.returned_ns)
        number = 0
        while True:
            lane = (group_name(call), number)
            if lane not in threads:
                threads[lane] = thread = _FIRST_GROUP + len(threads)
                beside = f" ({number + 1})" if number else ""
                yield _named("thread_name", rank, thread, f"group {lane[0]}{beside}")
            thread = threads[lane]
            if free_at.get(thread, begin) <= begin:
                break
            number += 1
        free_at[thread] = end
        args = {
            "operation": issued.at,
            "bytes": call.bytes,
            "wire_bytes": call.wire_bytes,
            "ranks": list(call.ranks),
            "dtype": call.dtype,
            "shapes": [list(shape) for shape in call.shapes],
            "module": call.module,
            "line": call.line,
        }
        yield _slice(call.operation, "collective", rank, thread, begin, end, args)


def _counters(timeline: Timeline, us: Any) -> Iterator[Event]:
    for device, columns in timeline.memory.items():
        for place, time_ns in enumerate(timeline.time_ns):
            figures = {category: column[place] for category, column in columns.items()}
            yield _counter(f"live on {device} (B)", timeline.rank, us(time_ns), figures)
    saved = timeline.saved
    for time_ns, size in zip(saved.time_ns, saved.bytes, strict=True):
        figures = {"bytes": max(size, 0)}
        yield _counter("saved activations (B)", timeline.rank, us(time_ns), figures)


def group_name(call: Call) -> str:
    """Return what to call a call's group: an axis of a mesh, where it has one."""
    return call.axes[0] if call.axes else call.group


def _end_ns(timeline: Timeline) -> int:
    return max(
        0,
        *timeline.time_ns[-1:],
        *(region.end_ns for region in timeline.regions),
        *(call.returned_ns for call in timeline.calls),
    )


def _named(what: str, rank: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": {"name": name}}


def _slice(  # noqa: PLR0913, PLR0917  (the format's own fields)
    name: str, kind: str, rank: int, thread: int, begin: float, end: float, args: Event
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": kind,
        "pid": rank,
        "tid": thread,
        "ts": begin,
        "dur": round(end - begin, 3),
        "args": args,
    }


def _counter(name: str, rank: int, at: float, figures: Mapping[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": rank, "tid": 0, "ts": at, "args": dict(figures)}
