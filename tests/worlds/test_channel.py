"""Messages and descriptors between processes."""

from __future__ import annotations

import os
import struct

import pytest

from pytest_shardcheck.vocabulary.errors import HarnessError
from pytest_shardcheck.worlds.channel import Channel, pair


@pytest.fixture
def ends():
    ours, theirs = pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_messages_arrive_whole_and_in_order(ends):
    ours, other = ends
    big = "x" * 100_000  # more than one read
    other.send({"kind": "a", "number": 1})
    other.send({"kind": "a", "text": "ünï"})
    assert ours.receive_ready() == [{"kind": "a", "number": 1}, {"kind": "a", "text": "ünï"}]
    other.send({"kind": "a", "big": big})
    assert ours.receive() == ({"kind": "a", "big": big}, [])


def test_receive_ready_never_blocks(ends):
    ours, _ = ends
    assert ours.receive_ready() == []
    assert not ours.closed


def test_descriptors_travel_with_their_message(ends):
    ours, other = ends
    read, write = os.pipe()
    other.send({"kind": "a", "here": "it is"}, [write])
    os.close(write)
    message, (received,) = ours.receive()
    os.write(received, b"through")
    assert os.read(read, 100) == b"through"
    assert message == {"kind": "a", "here": "it is"}
    for fd in (read, received):
        os.close(fd)


def test_descriptors_stay_with_their_message_when_several_arrive_at_once(ends):
    """The kernel hands over a message without descriptors together with the next one's."""
    ours, other = ends
    read, write = os.pipe()
    other.send({"kind": "without"})
    other.send({"kind": "with one"}, [write])
    other.send({"kind": "with two"}, [write, write])
    received = [ours.receive() for _ in range(3)]
    assert [(message["kind"], len(fds)) for message, fds in received] == [
        ("without", 0),
        ("with one", 1),
        ("with two", 2),
    ]
    for fd in (read, write, *(fd for _, fds in received for fd in fds)):
        os.close(fd)


def test_what_json_cannot_carry_arrives_as_its_repr(ends):
    ours, other = ends
    other.send({"kind": "a", "value": {1}})
    assert ours.receive() == ({"kind": "a", "value": "{1}"}, [])


def test_the_end_of_the_other_side_is_seen_after_its_last_message(ends):
    ours, other = ends
    other.send({"kind": "a", "last": "words"})
    other.close()
    assert ours.receive_ready() == [{"kind": "a", "last": "words"}]
    assert ours.closed
    assert ours.receive() is None


def test_half_a_message_is_no_message(ends):
    ours, other = ends
    frame = struct.pack("<I", 20) + b'{"half": '
    os.write(other.fileno(), frame)
    other.close()
    assert ours.receive_ready() == []
    assert ours.closed


def test_garbage_is_named(ends):
    ours, other = ends
    os.write(other.fileno(), b"Fatal error: this is no message\n")
    with pytest.raises(HarnessError, match="something else wrote into shardcheck's socket"):
        ours.receive_ready()


@pytest.mark.parametrize("payload", [b"no json", b"\xff\xfe", b"[1, 2]", b'{"no": "kind"}'])
def test_a_frame_that_is_no_message_is_named(ends, payload):
    ours, other = ends
    os.write(other.fileno(), struct.pack("<I", len(payload)) + payload)
    with pytest.raises(HarnessError, match="a message was expected"):
        ours.receive_ready()
