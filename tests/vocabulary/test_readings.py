from __future__ import annotations

import dataclasses
import json

import pytest

from pytest_shardcheck.vocabulary import UsageError
from pytest_shardcheck.vocabulary.collectives import Call
from pytest_shardcheck.vocabulary.readings import (
    CollectivesReading,
    Crossing,
    LiveBytes,
    MemoryReading,
    Reading,
    SavedBytes,
    SavedReading,
    StateBytes,
    TensorRecord,
)

OFFLOADED = MemoryReading(
    device="cuda:0",
    by_device={
        "cuda:0": StateBytes(params=100, buffers=3),
        "cuda:1": StateBytes(params=10, grads=20),
        "cpu": StateBytes(optimizer=200),
    },
)

RECORD = TensorRecord(
    bytes=8, dtype="float32", shape=(2,), category="inputs", module="a", line="t.py:1", count=2
)
LIVE = LiveBytes(
    start=1,
    end=2,
    peak=20,
    at_peak={"inputs": 16, "temporaries": 4},
    largest=(RECORD,),
    grown=(RECORD,),
    first_crossing=Crossing(
        ceiling=9, live=10, operator="aten.mm", module="a", phase="forward", line="t.py:1"
    ),
)
CALL = Call(
    operation="send",
    group="0",
    axes=("world", "dp"),
    ranks=(0, 1),
    dtype="float32",
    shapes=((2, 2), (1,)),
    bytes=20,
    wire_bytes=20,
    peer=1,
    phase="backward",
    module="a",
    line="t.py:2",
)


def a_reading() -> Reading:
    return Reading(
        rank=1,
        region="step",
        occurrence=2,
        outermost=False,
        implicit=True,
        memory=MemoryReading(
            device="cpu",
            by_device={"cpu": StateBytes(params=1, grads=2, optimizer=3, buffers=4)},
            parts={"actor": StateBytes(params=1)},
            live_by_device={"cpu": LIVE},
            allocated_by_device={"cpu": 90},
            reserved_by_device={"cuda:0": 100},
        ),
        collectives=CollectivesReading(calls=(CALL,), groups=("world", "dp"), unknown=("new_op",)),
        saved=SavedReading(
            packed=3,
            count=2,
            bytes=10,
            storage_bytes=20,
            at_forward_end=8,
            modules={"blocks.0": 10},
            packs=4,
            backward=True,
            unseen=("torch.func",),
            phases={"forward": SavedBytes(packed=1)},
        ),
        live_phases={"backward": {"cpu": LIVE}},
    )


def test_a_reading_is_plain_data() -> None:
    reading = a_reading()
    written = reading.to_json()
    assert json.loads(json.dumps(written)) == written
    assert Reading.from_json(json.loads(json.dumps(written))) == reading


def test_every_field_of_a_reading_is_written() -> None:
    reading = a_reading()
    written = json.loads(json.dumps({"schema": 1, **dataclasses.asdict(reading)}))
    assert reading.to_json() == written


@pytest.mark.parametrize("schema", [0, 2, None])
def test_a_reading_of_another_schema_is_refused(schema: object) -> None:
    with pytest.raises(UsageError, match=f"schema 1 was expected, this one has {schema}"):
        Reading.from_json({**a_reading().to_json(), "schema": schema})


def test_a_reading_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        a_reading().rank = 0  # type: ignore[misc]


def test_state_sums_what_was_watched() -> None:
    assert StateBytes(params=1, grads=2, optimizer=4, buffers=8).state == 15
    assert StateBytes(params=1, grads=0).state == 1
    assert StateBytes(params=0).state == 0
    assert StateBytes().state is None


def test_what_lies_on_another_device_is_zero_and_not_unknown() -> None:
    memory = OFFLOADED
    assert (memory.params, memory.grads, memory.optimizer, memory.buffers) == (100, 0, 0, 3)
    assert memory.state == 103
    assert memory.on("cpu") == StateBytes(params=0, grads=0, optimizer=200, buffers=0)


def test_a_device_without_an_index_is_all_of_its_kind() -> None:
    assert OFFLOADED.on("cuda") == StateBytes(params=110, grads=20, optimizer=0, buffers=3)


def test_what_was_not_watched_is_none_on_every_device() -> None:
    memory = MemoryReading(device="cpu", by_device={"cpu": StateBytes(params=5)})
    assert (memory.params, memory.grads, memory.optimizer, memory.buffers) == (5, None, None, None)
    assert memory.on("cuda:0") == StateBytes(params=0)
    assert MemoryReading(device="cpu").state is None
