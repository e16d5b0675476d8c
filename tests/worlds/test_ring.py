"""The last collectives of a rank, as the session reads them after its death."""

from __future__ import annotations

import os
import signal

from pytest_shardcheck.vocabulary.call_log import Descriptor, Stream
from pytest_shardcheck.worlds import watchdog
from pytest_shardcheck.worlds.orders import ring_path
from pytest_shardcheck.worlds.ring import Ring, read


def call(operation: str, group: str = "default_pg", ranks=(0, 1, 2), **fields) -> Descriptor:
    stream = Stream(name=group, label=group, ranks=ranks)
    return Descriptor(operation=operation, stream=fields.pop("stream", stream), **fields)


ALL_REDUCE = call("all_reduce", dtype="float32", shapes=((4,),), bytes=16, parts=(4,))


def test_events_are_numbered_by_group(tmp_path):
    ring = Ring(tmp_path / "ring")
    ring.returned(ring.issued(ALL_REDUCE, 1))
    ring.issued(call("broadcast", "dp"), 2)
    ring.issued(call("all_gather"), 3)
    events = [(e.name, e.group, e.number, e.returned) for e in read(tmp_path / "ring")]
    assert events == [
        ("all_reduce", "default_pg", 1, True),
        ("broadcast", "dp", 1, False),
        ("all_gather", "default_pg", 2, False),
    ]


def test_only_the_last_are_kept(tmp_path):
    ring = Ring(tmp_path / "ring")
    for _ in range(200):
        ring.returned(ring.issued(ALL_REDUCE, 0))
    numbers = [event.number for event in read(tmp_path / "ring")]
    assert numbers == list(range(137, 201))


def test_long_names_are_cut_and_no_ring_is_no_event(tmp_path):
    ring = Ring(tmp_path / "ring")
    ring.issued(call("n" * 3000, "g" * 3000, tuple(range(2000)), shapes=((1,),) * 1000), 0)
    (event,) = read(tmp_path / "ring")
    assert (event.name, event.group) == ("n" * 200, "g" * 200)
    assert read(tmp_path / "nowhere") == []


def test_it_outlives_a_sigkill_of_its_writer(tmp_path):
    pid = os.fork()
    if pid == 0:
        Ring(tmp_path / "ring").issued(ALL_REDUCE, 0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert [event.name for event in read(tmp_path / "ring")] == ["all_reduce"]


def test_the_rank_that_is_behind_is_named(tmp_path):
    for rank, calls in enumerate((3, 5, 5)):
        ring = Ring(ring_path(tmp_path, rank))
        for _ in range(calls):
            ring.returned(ring.issued(ALL_REDUCE, 0))
    assert watchdog.last_collectives(tmp_path, range(3))[-1].strip() == (
        "rank 1 waits in all_reduce #5; rank 0 is 2 behind."
    )


def test_a_group_compares_only_the_ranks_that_used_it(tmp_path):
    for rank in range(2):
        ring = Ring(ring_path(tmp_path, rank))
        ring.issued(call("all_reduce", f"group{rank}", (rank, 2)), 0)
    lines = "\n".join(watchdog.last_collectives(tmp_path, range(2)))
    assert "all_reduce #1 of group group0" in lines
    assert "behind" not in lines


def test_nothing_is_said_where_nothing_was_issued(tmp_path):
    assert watchdog.last_collectives(tmp_path, range(4)) == []


def test_a_call_that_was_refused_has_no_number(tmp_path):
    ring = Ring(tmp_path / "ring")
    ring.returned(ring.issued(ALL_REDUCE, 0))
    ring.failed(ring.issued(call("broadcast"), 0))
    ring.returned(ring.issued(ALL_REDUCE, 0))
    assert [(e.name, e.number) for e in read(tmp_path / "ring")] == [
        ("all_reduce", 1),
        ("broadcast", 0),
        ("all_reduce", 2),
    ]


def test_what_the_last_events_refer_to_is_there_however_many_there_were(tmp_path):
    ring = Ring(tmp_path / "ring")
    for size in range(3000):
        ring.issued(call("all_reduce", shapes=((size,),) * 60), 0)
    sizes = [event.descriptor.shapes[0][0] for event in read(tmp_path / "ring")]
    assert sizes == list(range(3000 - 64, 3000))


def test_the_first_difference_leads(tmp_path):
    for rank, dtype in enumerate(("float32", "int32")):
        ring = Ring(ring_path(tmp_path, rank))
        ring.returned(ring.issued(call("barrier", ranks=(0, 1)), 0))
        ring.issued(call("all_reduce", ranks=(0, 1), dtype=dtype, shapes=((4,),), bytes=16), 0)
    first, *_ = watchdog.last_collectives(tmp_path, range(2))
    assert first == (
        "ranks disagree in the default group: call #2 is all_reduce of float32 [4] (16 B) on "
        "rank 0, all_reduce of int32 [4] (16 B) on rank 1"
    )


def test_messages_name_their_peer(tmp_path):
    stream = Stream(name="pp", label="pp", ranks=(0, 1), sender=0, receiver=1)
    ring = Ring(ring_path(tmp_path, 0))
    for _ in range(2):
        ring.returned(ring.issued(call("send", stream=stream), 0))
    Ring(ring_path(tmp_path, 1)).issued(call("recv", stream=stream), 0)
    text = "\n".join(watchdog.last_collectives(tmp_path, range(2)))
    assert "rank 1: recv #1 from rank 0 of group pp (not returned)" in text
    assert "rank 0 waits in send #2 to rank 1 of group pp; rank 1 is 1 behind." in text
