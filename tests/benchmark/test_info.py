"""What a benchmark of a world tells beside its times."""

from __future__ import annotations

from pytest_shardcheck.benchmark.info import extra_info
from pytest_shardcheck.benchmark.names import describe
from pytest_shardcheck.vocabulary.collectives import Call, CollectivesReading
from pytest_shardcheck.vocabulary.readings import LiveBytes, MemoryReading, Reading, StateBytes
from pytest_shardcheck.vocabulary.specs import WorldSpec

WORLD = WorldSpec(size=2)


def call(operation, wire_bytes=0):
    return Call(operation=operation, group="world", wire_bytes=wire_bytes)


def reading(rank, *calls, region="step", params=None, peak=None, outermost=True, unknown=()):
    live = {} if peak is None else {"cpu": LiveBytes(start=0, end=0, peak=peak)}
    return Reading(
        rank=rank,
        region=region,
        outermost=outermost,
        memory=MemoryReading(by_device={"cpu": StateBytes(params=params)}, live_by_device=live),
        collectives=CollectivesReading(calls=calls, unknown=unknown),
    )


def info(*readings, inside=(), given=None, world=WORLD):
    return extra_info(world, readings, inside, given or {})


def test_without_readings_only_the_world_is_told():
    assert info() == {"world_size": 2, "backend": "gloo"}


def test_the_largest_of_any_rank():
    found = info(
        reading(0, call("send", 5), call("send", 5), params=8, peak=100),
        reading(1, call("recv", 7), params=12, peak=90),
    )
    assert found == {
        "world_size": 2,
        "backend": "gloo",
        "peak": 100,
        "state": 12,
        "collectives": {"send": 2, "recv": 1},
        "wire_bytes": 10,
    }


def test_what_was_not_measured_is_left_out():
    found = info(reading(0), reading(1))
    assert found == {"world_size": 2, "backend": "gloo", "collectives": {}, "wire_bytes": 0}
    assert "collectives" not in info(reading(0, unknown=("new_op",)), reading(1))


def test_calls_of_a_region_that_was_benchmarked_are_chance():
    found = info(reading(0, call("send", 5), peak=3, region="body"), inside=["body"])
    assert found == {"world_size": 2, "backend": "gloo", "timed_inside": ["body"], "peak": 3}


def test_several_regions_are_told_apart_and_nested_ones_left_out():
    found = info(
        reading(0, region="one", peak=1),
        reading(0, region="two", peak=2),
        reading(0, region="in two", peak=2, outermost=False),
    )
    assert found["peak (one)"] == 1
    assert found["peak (two)"] == 2
    assert not [name for name in found if "in two" in name or name == "peak"]


def test_what_ranks_gave_is_merged_and_wins():
    given = {
        0: {"lr": 0.1, "note": "a", "backend": "mine", "first": 1},
        1: {"lr": 0.1, "note": "b", "backend": "mine"},
        2: {"lr": 0.1, "note": "b", "backend": "mine"},
    }
    assert info(given=given) == {
        "world_size": 2,
        "backend": "mine",
        "lr": 0.1,
        "note (rank 0)": "a",
        "note (ranks 1-2)": "b",
        "first": 1,
    }


def test_equal_values_of_other_types_are_told_apart():
    found = info(given={0: {"flag": True}, 1: {"flag": 1}})
    assert (found["flag (rank 0)"], found["flag (rank 1)"]) == (True, 1)


def test_in_a_line():
    line = describe(
        {
            "world_size": 2,
            "backend": "gloo",
            "peak": 5_131_344,
            "state": 4_210_752,
            "collectives": {"all_gather": 16, "reduce_scatter": 8},
            "wire_bytes": 3_158_016,
            "lr": 0.1,
        }
    )
    assert line == " | gloo, peak 5.1 MB, state 4.2 MB, 24 collectives, 3.2 MB on the wire"
    assert describe({"world_size": 2, "backend": "gloo", "peak (one)": 10}) == (
        " | gloo, peak 10 B (one)"
    )
    assert describe({"lr": 0.1}) == ""


def test_a_users_own_value_under_one_of_our_names_is_no_figure():
    assert describe({"world_size": 2, "backend": "gloo", "peak": "high"}) == " | gloo"
