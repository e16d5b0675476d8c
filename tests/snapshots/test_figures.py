"""What is kept of a reading and of a value."""

from __future__ import annotations

import json

import pytest

from pytest_shardcheck.snapshots import figures_of, plain_value
from pytest_shardcheck.snapshots.figures import natural
from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.memory import LiveBytes, MemoryReading, StateBytes
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.saved import SavedReading


def reading(**changes) -> Reading:
    calls = tuple(
        Call(operation="all_gather", group="7", axes=("dp", "mesh_dp"), bytes=size, wire_bytes=size,
             phase=phase, module=module, line=f"train.py:{line}")
        for line, (size, phase, module) in enumerate(
            [(64, "forward", "l.10"), (64, "forward", "l.2"), (64, "backward", "l.2")]
        )
    )  # fmt: skip
    return Reading(
        **{
            "rank": 0,
            "region": "step",
            "memory": MemoryReading(
                by_device={"cpu": StateBytes(params=8, grads=4, buffers=0)},
                live_by_device={
                    "cpu": LiveBytes(start=1, end=2, peak=9, at_peak={"parameters": 9, "inputs": 0})
                },
            ),
            "collectives": CollectivesReading(calls=calls, groups=("7", "dp")),
            "saved": SavedReading(packed=3, count=2, bytes=5, storage_bytes=6, packs=4),
            **changes,
        }
    )


def test_a_reading_is_kept_by_what_a_person_reviews():
    assert figures_of(reading()) == {
        "memory": {
            "state": {"params": 8, "grads": 4, "buffers": 0},
            "live": 2,
            "peak": 9,
            "at_peak": {"parameters": 9},
        },
        "collectives": {
            "dp": {
                "all_gather": {
                    "count": 3,
                    "bytes": 192,
                    "wire_bytes": 192,
                    "calls": {"forward": {"64": ["l.2", "l.10"]}, "backward": {"64": ["l.2"]}},
                }
            }
        },
        "saved": {
            "packed": 3, "count": 2, "bytes": 5, "storage_bytes": 6, "at_forward_end": 0,
        },
    }  # fmt: skip


def test_nothing_kept_tells_a_line_a_path_or_a_number_of_torchs():
    text = json.dumps(figures_of(reading()))
    assert "train.py" not in text
    assert '"7"' not in text


@pytest.mark.parametrize(
    "saved",
    [
        None,
        SavedReading(packed=1, packs=1, unseen=("torch.func.grad",)),
        SavedReading(backward=True),
    ],
)
def test_saved_activations_that_no_hook_could_see_are_absent_and_not_zero(saved):
    assert "saved" not in figures_of(reading(saved=saved))


def test_what_was_not_measured_is_absent():
    kept = figures_of(reading(memory=MemoryReading(live_unmeasured="compiled"), saved=None))
    assert set(kept) == {"collectives"}


def test_a_group_without_a_name_is_its_ranks():
    calls = (Call(operation="send", group="12", ranks=(0, 2, 3), bytes=4),)
    kept = figures_of(reading(collectives=CollectivesReading(calls=calls)))
    assert set(kept["collectives"]) == {"[0, 2-3]"}


def test_state_on_another_device_is_kept_under_its_kind():
    memory = MemoryReading(
        device="cuda:3",
        by_device={"cuda:3": StateBytes(params=8), "cpu": StateBytes(optimizer=16)},
    )
    kept = figures_of(reading(memory=memory))["memory"]
    assert kept["state"]["params"] == 8
    assert kept["on"]["cpu"]["state"]["optimizer"] == 16
    everything_there = MemoryReading(device="cuda:3", by_device={"cuda:3": StateBytes(params=8)})
    assert "on" not in figures_of(reading(memory=everything_there))["memory"]


def test_an_operator_that_nobody_knows_is_refused():
    unknown = CollectivesReading(unknown=("c10d::new_",))
    with pytest.raises(UsageError, match="c10d::new_"):
        figures_of(reading(collectives=unknown))


def test_plain_values_are_sorted_and_without_tuples():
    given = {"b": (1, 2.5, None), "a": {"c": True, "": "text"}}
    assert json.dumps(plain_value(given)) == json.dumps(
        {"a": {"": "text", "c": True}, "b": [1, 2.5, None]}
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (float("nan"), "nan"),
        ([float("inf")], "inf"),
        ({1: 2}, "the key 1"),
        ({1, 2}, "a set can't be kept"),
        (object(), "a object can't be kept"),
    ],
)
def test_what_json_does_not_have_is_refused(value, said):
    with pytest.raises(UsageError, match=said):
        plain_value(value)


def test_numbers_in_names_are_sorted_as_numbers():
    assert sorted(["l.10", "l.9.b", "", "l.9"], key=natural) == ["", "l.9", "l.9.b", "l.10"]
