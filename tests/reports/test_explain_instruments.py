"""The text of a failure of peaks, collectives and saved activations, whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_shardcheck.expectations import (
    collectives,
    judge,
    max_collectives,
    max_memory,
    max_saved_activations,
    memory,
    saved_activations,
)
from pytest_shardcheck.reports import explain
from pytest_shardcheck.vocabulary import (
    Call,
    CollectivesReading,
    Crossing,
    LiveBytes,
    MemoryReading,
    Reading,
    SavedReading,
    TensorRecord,
    WorldSpec,
)

WORLD = WorldSpec(size=2)
BUCKET = TensorRecord(
    bytes=2_105_344,
    dtype="float32",
    shape=(526_336,),
    category="communication buffers",
    module="layers.0",
    line="train.py:31",
)
LOSS = TensorRecord(
    bytes=4, dtype="float32", category="temporaries", line="train.py:9", count=3, steps=(1, 2, 3)
)
LIVE = LiveBytes(
    start=4_000_000,
    end=4_000_012,
    peak=5_131_344,
    at_peak={"parameters": 3_026_000, "communication buffers": 2_105_344, "inputs": 0},
    largest=(BUCKET,),
    grown=(LOSS,),
    first_crossing=Crossing(
        ceiling=5_000_000,
        live=5_100_000,
        operator="aten.mm.default",
        module="layers.7",
        phase="backward",
        line="train.py:31",
    ),
)


def text(expectation: Any, **fields: Any) -> list[str]:
    memory_reading = MemoryReading(live_by_device={"cpu": LIVE})
    readings = {
        rank: [Reading(rank=rank, region="step", **{"memory": memory_reading, **fields})]
        for rank in range(2)
    }
    return explain(judge([expectation], WORLD, readings), WORLD).splitlines()


def test_a_crossed_peak_says_what_was_alive_and_where_it_was_crossed() -> None:
    assert text(max_memory("5 MB")) == [
        (
            "max_memory(peak): the ceiling of 5,000,000 B (5.0 MB) was crossed in region 'step' "
            "at world2"
        ),
        "  ranks 0-1: 5,131,344 B (5.1 MB), 131,344 B (2.6 %) above",
        "    at the peak: parameters 3,026,000 B, communication buffers 2,105,344 B",
        (
            "    first above it: aten.mm.default in backward, 5,100,000 B then alive, "
            "in layers.7 at train.py:31"
        ),
        "    the largest:",
        ("      2,105,344 B float32 [526336] communication buffers, in layers.0 at train.py:31"),
        '  a ceiling that passes at world size 2: peak="5.14 MB"',
    ]


def test_growth_says_what_was_left_behind() -> None:
    assert text(max_memory(growth=0))[1:] == [
        "  ranks 0-1: 12 B, 12 B above",
        "    left behind:",
        "      3 x 4 B float32 [] temporaries, at train.py:9, in step 1-3",
        '  a ceiling that passes at world size 2: growth="12 B"',
    ]


def test_memory_that_shrank_has_no_value_to_paste() -> None:
    shrunk = MemoryReading(live_by_device={"cpu": LiveBytes(start=12, end=4, peak=12)})
    assert text(memory(growth=0), memory=shrunk)[1:] == [
        "  ranks 0-1: -8 B, 8 B below",
        "  less was alive at the end than at the start; max_memory(growth=0) passes",
    ]


def test_the_allocators_peak_stands_beside_the_counters() -> None:
    both = MemoryReading(live_by_device={"cpu": LIVE}, allocated_by_device={"cpu": 6_000_000})
    lines = text(max_memory(allocated="5 MB"), memory=both)
    assert lines[1] == "  ranks 0-1: 6,000,000 B (6.0 MB), 1,000,000 B (20.0 %) above"
    assert lines[2] == (
        "    the counter's peak: 5,131,344 B; kernels hold what is above it inside an operator"
    )
    assert lines[3].startswith("    at the peak: parameters 3,026,000 B")
    assert lines[4] == "    the largest:"  # the counter's crossing is not the allocator's


def gather_of(layer: int, **fields: Any) -> Call:
    return Call(
        **{
            "operation": "all_gather",
            "group": "1",
            "axes": ("dp",),
            "dtype": "float32",
            "shapes": ((65_792,),),
            "bytes": 263_168,
            "wire_bytes": 131_584,
            "phase": "forward",
            "module": f"layers.{layer}",
            "line": "train.py:30",
            **fields,
        }
    )


def test_a_count_says_which_calls_there_were() -> None:
    calls = tuple(map(gather_of, range(6)))
    found = text(collectives(all_gather=5), collectives=CollectivesReading(calls=calls))
    assert found == [
        (
            "collectives(all_gather): 5 calls were expected and not measured in region 'step' at "
            "world2"
        ),
        "  ranks 0-1: 6 calls, 1 more",
        (
            "    6 x all_gather of float32 [65792] (263,168 B) in group 'dp', forward in layers.0, "
            "layers.1, layers.2, layers.3 and 2 more at train.py:30"
        ),
        "  the value that passes at world size 2: all_gather=6",
    ]


def test_an_unexpected_operation_is_named_with_its_caller() -> None:
    stray = Call(operation="barrier", group="0", axes=("world",), line="train.py:40")
    found = text(collectives(), collectives=CollectivesReading(calls=(stray,)))
    assert found[0].startswith("collectives(barrier): 0 calls were expected")
    assert "    1 x barrier in group 'world', forward at train.py:40" in found


def test_missing_calls_are_fewer() -> None:
    found = text(collectives(all_gather=1))
    assert found[1] == "  ranks 0-1: 0 calls, 1 fewer"


def test_a_ceiling_by_kind_is_written_as_the_marker_takes_it() -> None:
    calls = CollectivesReading(calls=(gather_of(0),))
    found = text(max_collectives(bytes={"all_gather": 1}), collectives=calls)
    assert found[-1] == '  a ceiling that passes at world size 2: bytes={"all_gather": "264 kB"}'
    found = text(max_collectives(count=0), collectives=calls)
    assert found[-1] == "  a ceiling that passes at world size 2: count=1"


def test_saved_activations_name_the_modules() -> None:
    saved = SavedReading(
        packed=12,
        count=8,
        bytes=300,
        storage_bytes=320,
        at_forward_end=300,
        modules={"layers.1": 100, "layers.0": 200},
        packs=12,
    )
    assert text(max_saved_activations(bytes=299), saved=saved)[1:] == [
        "  ranks 0-1: 300 B, 1 B (0.3 %) above",
        "    at the end of forward: 300 B",
        "    at the most bytes, by module: layers.0 200 B, layers.1 100 B",
        '  a ceiling that passes at world size 2: bytes="300 B"',
    ]
    assert text(saved_activations(packed=11), saved=saved)[:2] == [
        (
            "saved_activations(packed): 11 tensors were expected and not measured in region 'step' "
            "at world2"
        ),
        "  ranks 0-1: 12 tensors, 1 more",
    ]


def test_what_fails_for_one_reason_is_said_once() -> None:
    calls = CollectivesReading(groups=("world",))
    assert text(collectives(group="tp"), collectives=calls) == [
        (
            "collectives(group='tp') matched nothing at world2: ranks 0-1: there is no process "
            "group 'tp'; the groups were 'world'."
        )
    ]
    assert text(max_saved_activations(count=1, bytes=1)) == [
        (
            "max_saved_activations(count, bytes) is unmeasured in region 'step' at world2: ranks "
            "0-1: saved activations were not measured; put the step inside "
            "`with shardcheck.measure(model, optimizer):`."
        )
    ]


def test_a_ceiling_that_was_crossed_before_the_region() -> None:
    live = replace(LIVE, first_crossing=Crossing(ceiling=1, live=4_000_000))
    found = text(max_memory(1), memory=MemoryReading(live_by_device={"cpu": live}))
    assert "    above it when the region began: 4,000,000 B were alive" in found


def test_a_group_that_does_not_exist_lists_those_that_do() -> None:
    calls = CollectivesReading(groups=("world", "dp"))
    assert text(max_collectives(count=1, group="tp"), collectives=calls) == [
        (
            "max_collectives(count, group='tp') matched nothing at world2: ranks 0-1: there is no "
            "process group 'tp'; the groups were 'world', 'dp'."
        )
    ]
