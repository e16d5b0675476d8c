"""The last collectives of a rank, as the session reads them after its death."""

from __future__ import annotations

import os
import signal

from pytest_shardcheck.worlds import watchdog
from pytest_shardcheck.worlds.orders import ring_path
from pytest_shardcheck.worlds.ring import Ring, read


def test_events_are_numbered_by_group(tmp_path):
    ring = Ring(tmp_path / "ring")
    ring.returned(ring.issued("all_reduce", "default_pg", 1))
    ring.issued("broadcast", "dp", 2)
    ring.issued("all_gather", "default_pg", 3)
    events = [(e.name, e.group, e.number, e.returned) for e in read(tmp_path / "ring")]
    assert events == [
        ("all_reduce", "default_pg", 1, True),
        ("broadcast", "dp", 1, False),
        ("all_gather", "default_pg", 2, False),
    ]


def test_only_the_last_are_kept(tmp_path):
    ring = Ring(tmp_path / "ring")
    for _ in range(200):
        ring.returned(ring.issued("all_reduce", "default_pg", 0))
    numbers = [event.number for event in read(tmp_path / "ring")]
    assert numbers == list(range(137, 201))


def test_long_names_are_cut_and_no_ring_is_no_event(tmp_path):
    ring = Ring(tmp_path / "ring")
    ring.issued("n" * 100, "g" * 100, 0)
    (event,) = read(tmp_path / "ring")
    assert (event.name, event.group) == ("n" * 39, "g" * 40)
    assert read(tmp_path / "nowhere") == []


def test_it_outlives_a_sigkill_of_its_writer(tmp_path):
    pid = os.fork()
    if pid == 0:
        Ring(tmp_path / "ring").issued("all_reduce", "default_pg", 0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert [event.name for event in read(tmp_path / "ring")] == ["all_reduce"]


def test_the_rank_that_is_behind_is_named(tmp_path):
    for rank, calls in enumerate((3, 5, 5)):
        ring = Ring(ring_path(tmp_path, rank))
        for _ in range(calls):
            ring.returned(ring.issued("all_reduce", "default_pg", 0))
    assert watchdog.last_collectives(tmp_path, 3)[-1].strip() == (
        "rank 1 waits in all_reduce #5; rank 0 is 2 behind."
    )


def test_a_group_compares_only_the_ranks_that_used_it(tmp_path):
    for rank in range(2):
        ring = Ring(ring_path(tmp_path, rank))
        ring.issued("all_reduce", f"group{rank}", 0)
    lines = "\n".join(watchdog.last_collectives(tmp_path, 2))
    assert "all_reduce #1 of group group0" in lines
    assert "behind" not in lines


def test_nothing_is_said_where_nothing_was_issued(tmp_path):
    assert watchdog.last_collectives(tmp_path, 4) == []
