"""Calls of all ranks held against each other: what disagrees, and what legitimately differs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_shardcheck.vocabulary.call_log import CallLog, Descriptor, Site, Stream
from pytest_shardcheck.worlds import agreement

DP = Stream(name="0", label="dp", ranks=(0, 1))


def call(operation: str = "all_reduce", *parts: int, **fields) -> Descriptor:
    fields = {"dtype": "float32", "shapes": ((sum(parts),),), "bytes": 4 * sum(parts)} | fields
    return Descriptor(operation=operation, parts=parts, **{"stream": DP, **fields})


def log(*calls: Descriptor, line: str = "train.py:12", failed: bool = False) -> CallLog:
    return CallLog(
        descriptors=calls,
        sites=tuple(Site(descriptor=at, line=line) for at in range(len(calls))),
        calls=tuple(range(len(calls))),
        failed=failed,
    )


def compare(*logs: CallLog) -> list[str]:
    return agreement.differences(dict(enumerate(map(agreement.calls_of_log, logs))))


def to(receiver: int, sender: int = 0, tag: int = 0) -> Stream:
    return replace(DP, sender=sender, receiver=receiver, tag=tag)


A = call("all_reduce", 256)
INT = call("all_reduce", 256, dtype="int32")
SMALL = call("all_reduce", 128)
BROADCAST = call("broadcast", 256, root=0)
BARRIER = call("barrier")


def test_equal_logs_agree():
    assert compare(log(A, BROADCAST, A, BARRIER), log(A, BROADCAST, A, BARRIER)) == []


def test_the_first_difference_says_what_and_where_on_each_rank():
    (text,) = compare(log(A, A, A), log(A, INT, SMALL, line="train.py:14"))
    assert text == (
        "ranks disagree in group dp: call #2 is all_reduce of float32 [256] (1,024 B) at "
        "train.py:12 on rank 0, all_reduce of int32 [256] (1,024 B) at train.py:14 on rank 1"
    )


def test_a_module_is_named():
    made = CallLog(
        descriptors=(A,), sites=(Site(descriptor=0, module="layers.3", line="t.py:1"),), calls=(0,)
    )
    assert "at t.py:1 in layers.3 on rank 0" in compare(made, log(INT))[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (A, INT),
        (A, SMALL),
        (A, BROADCAST),
        (A, call("all_reduce", 128, 128)),  # coalesced otherwise
        (BROADCAST, call("broadcast", 256, root=1)),
        (call("reduce", 4, root=0), call("reduce", 4, root=1)),
        (call("all_gather", 4), call("all_gather", 5)),
        (call("all_gather", 3, 5), call("all_gather", 5, 3)),
        (call("reduce_scatter", 4), call("all_gather", 4)),
        (BARRIER, A),
    ],
)
def test_a_difference_is_found_whichever_rank_has_it(one, other):
    assert len(compare(log(one), log(other))) == 1
    assert len(compare(log(other), log(one))) == 1


def test_ranks_that_agree_are_folded():
    logs = [log(replace(A, stream=replace(DP, ranks=(0, 1, 2, 3))))] * 4
    logs[2] = log(replace(INT, stream=replace(DP, ranks=(0, 1, 2, 3))))
    (text,) = compare(*logs)
    assert "on ranks 0-1, 3, all_reduce of int32" in text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (call("all_reduce", 6, shapes=((2, 3),)), call("all_reduce", 6, shapes=((6,),))),
        # A gather's root sees all outputs, the others their own.
        (call("gather", 4, root=0, bytes=32), call("gather", 4, root=0, bytes=16)),
        (call("all_gather", 3, 5), call("all_gather", 3, 5)),
    ],
)
def test_what_may_differ_does(one, other):
    assert compare(log(one), log(other)) == []


def test_a_missing_call_is_named_with_the_last_one_made():
    (text,) = compare(log(A, BROADCAST), log(A))
    assert text == (
        "ranks disagree in group dp: call #2 is broadcast of float32 [256] (1,024 B) with root 0 "
        "at train.py:12 on rank 0, and missing on rank 1: the last one there is #1, all_reduce of "
        "float32 [256] (1,024 B) at train.py:12"
    )
    (text,) = compare(log(A), log())
    assert text.endswith("and missing on rank 1: there is none there")


def test_ranks_outside_a_group_have_no_say():
    first, second = replace(A, stream=replace(DP, ranks=(0, 1))), log()
    assert compare(log(first), log(first), second) == []


def test_groups_of_one_axis_do_not_mix():
    low = replace(A, stream=Stream(name="1", label="tp", ranks=(0, 1)))
    high = replace(INT, stream=Stream(name="2", label="tp", ranks=(2, 3)))
    assert compare(log(low), log(low), log(high), log(high)) == []


def test_each_group_reports_its_first_difference():
    tp = Stream(name="1", label="tp", ranks=(0, 1))
    one = log(A, replace(A, stream=tp), A)
    other = log(INT, replace(SMALL, stream=tp), INT)
    first, second = compare(one, other)
    assert "group dp: call #1" in first
    assert "group tp: call #1" in second


def all_to_all(sends, receives) -> Descriptor:
    return call("all_to_all", *sends, received=tuple(receives))


def test_uneven_all_to_alls_agree_where_the_splits_match():
    assert compare(log(all_to_all((1, 2), (1, 3))), log(all_to_all((3, 4), (2, 4)))) == []
    (text,) = compare(log(all_to_all((1, 2), (1, 3))), log(all_to_all((3, 4), (5, 4))))
    assert text == (
        "ranks disagree in group dp: call #1 is all_to_all of float32: rank 0 sends 2 elements to "
        "rank 1 at train.py:12, which expects 5 at train.py:12"
    )


def test_messages_are_compared_in_order_by_sender_receiver_and_tag():
    send = call("send", 4, stream=to(1))
    recv = call("recv", 4, stream=to(1))
    assert compare(log(send, A, send), log(A, recv, recv)) == []
    (text,) = compare(log(send, send), log(recv, replace(recv, parts=(8,), shapes=((8,),))))
    assert text == (
        "ranks disagree in group dp: message #2 from rank 0 to rank 1 is send of float32 [4] "
        "(16 B) at train.py:12 on rank 0, recv of float32 [8] (16 B) at train.py:12 on rank 1"
    )
    (text,) = compare(log(send), log())
    assert text.startswith("ranks disagree in group dp: message #1 from rank 0 to rank 1 is send")
    tagged = replace(send, stream=to(1, tag=7)), replace(recv, stream=to(1, tag=7))
    assert compare(log(send, tagged[0]), log(tagged[1], recv)) == []
    assert "with tag 7" in compare(log(tagged[0]), log())[0]


def test_who_receives_from_anyone_is_not_compared():
    send = call("send", 4, stream=to(1))
    anyone = call("recv", 4, stream=to(1, sender=agreement.ANYONE))
    assert compare(log(send), log(anyone)) == []


def test_a_group_in_which_a_call_failed_is_the_tests_own_business():
    assert compare(log(A), log(INT, failed=True)) == []
    assert compare(log(A, failed=True), log(INT)) == []


def test_a_group_that_torch_does_not_list_is_not_compared():
    stranger = replace(DP, ranks=())
    assert compare(log(replace(A, stream=stranger)), log(replace(INT, stream=stranger))) == []


# What is left in rings


def left(*events: tuple[int, Descriptor]) -> agreement.Calls:
    return agreement.calls_of_events(events)


def test_of_rings_only_calls_of_the_same_number_are_compared():
    assert agreement.differences({0: left((7, A), (8, INT)), 1: left((7, A))}) == []
    (text,) = agreement.differences({0: left((7, A), (8, INT)), 1: left((8, A))})
    assert "call #8 is all_reduce of int32 [256] (1,024 B) on rank 0, " in text


def test_a_refused_call_is_none():
    assert agreement.differences({0: left((0, INT), (1, A)), 1: left((1, A))}) == []


def test_two_groups_in_another_order_cross():
    tp = Stream(name="1", label="tp", ranks=(0, 1))
    calls = {0: left((1, A)), 1: left((1, replace(SMALL, stream=tp)))}
    assert agreement.crossing(calls) == (
        "ranks disagree in the order of two groups: rank 0 waits in call #1 of group dp, "
        "all_reduce of float32 [256] (1,024 B), and rank 1 waits in call #1 of group tp, "
        "all_reduce of float32 [128] (512 B)"
    )
    behind = {0: left((1, A), (1, replace(A, stream=tp))), 1: left((1, A))}
    assert agreement.crossing(behind) is None


def test_a_log_is_plain_data():
    made = log(A, all_to_all((1, 2), (3, 4)), call("send", 4, stream=to(1)))
    assert CallLog.from_json(made.to_json()) == made
