"""The smallest world under a limit: stated cases, the same by trying each, never and its reason."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_shardcheck import UsageError
from pytest_shardcheck.plan import (
    Accounting,
    ActivationBytes,
    ClosedForm,
    Footprint,
    Part,
    Plan,
    accounting,
    first_that_fits,
    plan_closed_form,
    smallest_world,
)

GB = 10**9
SIMPLE = accounting(moments="fp16", master=None)
FP32_MOMENTS = accounting(master=None)
MIXED = accounting()


def form(stage: int = 3, each: Accounting = MIXED, **options: Any) -> ClosedForm:
    return ClosedForm(**{"params": 70 * GB, "stage": stage, "accounting": each, **options})


def whole(footprint: Footprint) -> dict[str, int]:
    return {part.name: part.bytes for part in footprint.parts if not part.divided}


# 560 / 80 = 7, 840 / 80 = 10.5, 1120 / 80 = 14.
@pytest.mark.parametrize(("each", "world"), [(SIMPLE, 7), (FP32_MOMENTS, 11), (MIXED, 14)])
def test_stage_3_fits_from_the_world_that_the_arithmetic_gives(
    each: Accounting, world: int
) -> None:
    answer = smallest_world(form(each=each), limit="80 GB")
    assert answer.world == world
    assert answer.fits is not None
    assert answer.fits.total <= 80 * GB < form(each=each).footprint(world - 1).total


@pytest.mark.parametrize("each", [SIMPLE, FP32_MOMENTS, MIXED])
@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_other_stages_never_fit_for_their_weights_stay(stage: int, each: Accounting) -> None:
    answer = smallest_world(form(stage, each), limit="80 GB")
    assert answer.world is answer.fits is None
    assert whole(answer.least)["weights"] == 140 * GB
    assert ("gradients" in whole(answer.least)) == (stage < 2)
    assert ("first moment" in whole(answer.least)) == (stage < 1)


def test_a_limit_is_reached_exactly() -> None:
    assert smallest_world(form(), limit=80 * GB).world == 14
    assert smallest_world(form(), limit=80 * GB - 1).world == 15
    assert smallest_world(form(2), limit=140 * GB + 14).world == 70 * GB  # one element each
    never = smallest_world(form(2), limit=140 * GB + 13)
    assert never.fits is None
    assert never.least.total == 140 * GB + 14


def test_gb_and_gib_are_not_the_same() -> None:
    assert smallest_world(form(), limit="80 GB").world == 14
    assert smallest_world(form(), limit="75 GiB").world == 14
    assert smallest_world(form(), limit="80 GiB").world == 14
    assert smallest_world(form(), limit="70 GB").world == 16
    assert smallest_world(form(), limit="70 GiB").world == 15


# 80 GB less 100 GB / k is room for 1,120 / N or 560 / N. At k = 3 the quotients are 24 and 12, but
# neither a third of 100 GB nor a shard of 70e9 parameters is whole: some bytes are too much there.
@pytest.mark.parametrize(
    ("factor", "mixed", "simple"),
    [(1, None, None), (2, 38, 19), (3, 25, 13), (4, 21, 11), (5, 19, 10)],
)
def test_checkpointing_changes_the_answer(
    factor: int, mixed: int | None, simple: int | None
) -> None:
    held = ActivationBytes(stored=-(-100 * GB // factor))
    for each, world in ((MIXED, mixed), (SIMPLE, simple)):
        answer = smallest_world(form(each=each, activations=held), limit="80 GB")
        assert answer.world == world
        if world is None:
            assert whole(answer.least) == {"activations": 100 * GB}
        for stage in (0, 1, 2):
            other = smallest_world(form(stage, each, activations=held), limit="80 GB")
            assert other.world is None


def test_it_is_the_same_as_trying_each_world() -> None:
    draw = random.Random(7)
    seen = set()
    for _ in range(300):
        stage = draw.randrange(4)
        planned = form(
            stage,
            draw.choice([SIMPLE, FP32_MOMENTS, MIXED]),
            params=draw.randrange(1, 400),
            buffers=draw.choice([0, 50]),
            tensor_parallel=draw.choice([1, 2, 3]),
            **(draw.choice([{}, {"shard": 3}, {"replicate": 2}]) if stage == 3 else {}),
        )
        limit = draw.randrange(1, 4000)
        worlds = range(planned.step, planned.most + 1, planned.step)
        by_trial = next(
            (world for world in worlds if planned.footprint(world).total <= limit), None
        )
        assert smallest_world(planned, limit=limit).world == by_trial, planned
        seen.add(by_trial is None)
    assert seen == {True, False}


def test_a_footprint_never_grows_with_the_world() -> None:
    for stage in range(4):
        planned = form(stage, params=1009)
        totals = [planned.footprint(world).total for world in range(1, 1100)]
        assert totals == sorted(totals, reverse=True)
        assert totals[-1] == planned.footprint(planned.most).total


def test_hsdp_fits_in_one_replica_or_never_and_says_what_would() -> None:
    assert smallest_world(form(shard=16), limit="80 GB").world == 16
    never = smallest_world(form(shard=8), limit="80 GB")
    assert (never.world, never.shard) == (None, 14)
    assert never.least.total == 140 * GB
    assert smallest_world(form(replicate=3), limit="80 GB").world == 3 * 14
    hopeless = smallest_world(form(shard=8, buffers=90 * GB), limit="80 GB")
    assert (hopeless.world, hopeless.shard) == (None, None)


def test_tensor_parallel_lets_stage_2_fit() -> None:
    answer = smallest_world(form(2, tensor_parallel=8), limit="80 GB")
    # 17.5 GB of weights stay, and 140 / 8 of gradients, 840 / 8 of optimizer are divided.
    assert answer.world == 8 * 2
    assert answer.fits is not None
    assert answer.fits.total == 17_500_000_000 + 122_500_000_000 // 2


@pytest.mark.parametrize(
    ("limit", "seen"),
    [
        ("80", "limit: '80' has no unit"),
        ("80 Gb", "limit: '80 Gb' has no unit that is known"),
        (80.0, "limit: 80.0 is a float"),
        (-1, "limit: -1 is negative"),
        (0, "limit: 0 is no memory; expected a size above 0"),
        ("0 GB", "limit: 0 GB is no memory"),
    ],
)
def test_a_limit_that_is_no_size_is_refused(limit: Any, seen: str) -> None:
    with pytest.raises(UsageError) as error:
        smallest_world(form(), limit=limit)
    assert str(error.value).startswith(seen)
    with pytest.raises(UsageError):
        first_that_fits(form(), limit=limit, worlds=[1])


class Recorded:
    """An estimate as a simulation is one: some worlds, each of which costs, in no known order."""

    name = "recorded"

    def __init__(self, totals: dict[int, int]) -> None:
        self.totals = totals
        self.tried: list[int] = []

    def footprint(self, world: int) -> Footprint:
        self.tried.append(world)
        whole = (Part(name="all", bytes=self.totals[world]),)
        return Footprint(world=world, shards=world, replicas=1, parts=whole)


def test_the_first_of_some_worlds_that_fits() -> None:
    recorded = Recorded({8: 100, 16: 60, 32: 70, 64: 10})
    answer = first_that_fits(recorded, limit=65, worlds=[64, 16, 8, 16, 32])
    assert answer.world == 16
    assert recorded.tried == [8, 16]  # no more than it takes


def test_none_of_some_worlds_fits() -> None:
    answer = first_that_fits(Recorded({8: 100, 16: 60, 32: 70}), limit=59, worlds=[8, 16, 32])
    assert answer.world is None
    assert (answer.least.world, answer.least.total) == (16, 60)
    with pytest.raises(UsageError, match="no world to try"):
        first_that_fits(Recorded({}), limit=59, worlds=[])


def test_a_plan_is_plain_data() -> None:
    plan = plan_closed_form(form(shard=8), limit="80 GB", worlds=[16, 8, 16], variant="one")
    assert [one.world for one in plan.footprints] == [8, 16]
    assert plan.at(16) == plan.footprints[1]
    assert plan.at(32) is None
    assert Plan.from_json(plan.to_json()) == plan
