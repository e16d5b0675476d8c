"""Pipelines gone wrong: what a ceiling says, and how soon a session ends that would hang."""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import m8
from steps import third
from systems.pipelines import interleaved, one_stage, total, trained_in_stages
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

from pytest_shardcheck import collectives, max_memory, max_saved_activations

P = 2_105_344
INPUT = 4 * 256 * 4  # of a layer, for a micro-batch of 4


def third_step(shardcheck, training):
    return third(shardcheck, training.step, *training.watched).reading


# Two stages of four layers. 1F1B has two micro-batches in flight on the first, whether there are
# four or eight; GPipe all of them.
@pytest.mark.world_size(2)
@pytest.mark.parametrize("micro_batches", [4, 8])
def test_gpipe_where_1f1b_was_meant(micro_batches, process_group, shardcheck):
    def read(schedule):
        many = {"micro_batches": micro_batches, "rows": 4 * micro_batches}
        return third_step(shardcheck, one_stage(schedule, **many))

    in_flight = max_saved_activations(bytes=2 * 4 * INPUT, count=2 * 4)
    shardcheck.check(read(Schedule1F1B), in_flight)
    held = micro_batches * 4 * INPUT
    with caught(
        "max_saved_activations(bytes): the ceiling of 32,768 B (32.8 kB) was crossed",
        f"{held:,} B",
        f"at the end of forward: {held:,} B",
        f"{micro_batches * 4} tensors, {micro_batches * 4 - 8} more",
    ):
        shardcheck.check(read(ScheduleGPipe), in_flight)


# A ceiling that the first stage needs hides that the last, which has one in flight, keeps all.
@pytest.mark.world_size(2)
def test_each_stage_has_its_own_ceiling(process_group, shardcheck, world):
    stages = [max_saved_activations(bytes=(2 - rank) * 4 * INPUT, rank=rank) for rank in (0, 1)]
    shardcheck.check(third_step(shardcheck, one_stage(Schedule1F1B)), *stages)
    wrong = third_step(shardcheck, one_stage(ScheduleGPipe, micro_batches=2, rows=8))
    shardcheck.check(wrong, stages[0])
    if world.rank == 1:
        with caught("the ceiling of 16,384 B (16.4 kB) was crossed", "rank 1: 32,768 B"):
            shardcheck.check(wrong, stages[1])


# Interleaved stages keep ranks busier and more in flight: on rank r of n, with two stages each,
# n + 2 (n - 1 - r) + 1 of half the layers, where 1F1B has n - r of all; and each stage sends.
@pytest.mark.world_size(2)
def test_interleaved_where_1f1b_was_meant(process_group, world, shardcheck):
    plain = max_saved_activations(bytes=(2 - world.rank) * 4 * INPUT), collectives(send=8, recv=8)
    shardcheck.check(third_step(shardcheck, one_stage(Schedule1F1B)), *plain)
    wrong = third_step(shardcheck, interleaved())
    held = (5 - 2 * world.rank) * 2 * INPUT
    with caught(f"rank {world.rank}: {held:,} B", f"{held - (2 - world.rank) * 4 * INPUT:,} B ("):
        shardcheck.check(wrong, plain[0])
    with caught("24 calls, 16 more", "send of float32 [4, 256] (4,096 B) in group 'world'"):
        shardcheck.check(wrong, plain[1])


class Whole(nn.Module):
    """A stage that uses its layers and holds all of them."""

    def __init__(self, number, stages):
        super().__init__()
        self.layers = m8()
        self.used = slice(number * 8 // stages, (number + 1) * 8 // stages)

    def forward(self, hidden):
        return self.layers[self.used](hidden)


@pytest.mark.world_size(4)
def test_a_stage_that_holds_the_whole_model(process_group, shardcheck, world):
    share = max_memory(params=P // 4), max_memory(grads=P // 4)
    reading = third_step(shardcheck, one_stage(Schedule1F1B))
    for expectation in share:
        shardcheck.check(reading, expectation)

    stage = PipelineStage(Whole(world.rank, 4), world.rank, 4, torch.device("cpu"))
    training = trained_in_stages(Schedule1F1B(stage, 8, loss_fn=total), [stage])
    reading = third_step(shardcheck, training)
    # It trains its part, and so has gradients and moments of that alone.
    shardcheck.check(reading, share[1])
    with caught(
        "max_memory(params): the ceiling of 526,336 B",
        "2,105,344 B (2.1 MB), 1,579,008 B (300.0 %) above",
        "params 2,105,344 B, grads 526,336 B, optimizer 1,052,688 B",
    ):
        shardcheck.check(reading, share[0])


# A stage tells DistributedDataParallel which backward is the last; not where that is inside another
# module. Then the last stage averages each of eight micro-batches. On the first, two are in flight:
# a backward spends what two forwards had prepared, and the last micro-batch is never averaged.
@pytest.mark.world_size(4)
def test_gradients_averaged_for_each_micro_batch(process_group, shardcheck, world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))

    def averaged(part):
        return DistributedDataParallel(part, process_group=mesh.get_group("dp"))

    def read(wrap):
        return third_step(
            shardcheck, one_stage(Schedule1F1B, group=mesh.get_group("pp"), wrap=wrap)
        )

    once = collectives(all_reduce=1, group="dp")
    shardcheck.check(read(averaged), once)
    calls = 7 if world.rank < 2 else 8
    with caught(
        "collectives(all_reduce, group='dp'): 1 call was expected",
        f"{calls} calls, {calls - 1} more",
        f"{calls} x all_reduce of float32 [263168] (1,052,672 B) in group 'dp', backward in 0.",
    ):
        shardcheck.check(read(lambda part: nn.Sequential(averaged(part))), once)


# What ends a test, the cause first. torch refuses too few micro-batches (A23, torchtitan #775: it
# once hung); of the others a rank waits in a receive that nobody answers.
SESSION = """
import pytest
import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe


def run(world, schedule, micro_batches, rows):
    stage = PipelineStage(nn.Linear(4, 4), world.rank, world.size, torch.device("cpu"))
    pipeline = schedule(stage, micro_batches, loss_fn=nn.functional.mse_loss)
    batch = torch.ones(rows, 4)
    pipeline.step(batch) if world.rank == 0 else pipeline.step(target=batch)


@pytest.mark.world_size(4)
def test_too_few_micro_batches(process_group, world):
    run(world, Schedule1F1B, 2, 8)


@pytest.mark.world_size(2)
@pytest.mark.parametrize("rows", [8, 10])
def test_ragged(rows, process_group, world):
    run(world, Schedule1F1B, 4, rows)


@pytest.mark.world_size(2)
def test_more_micro_batches_than_rows(process_group, world):
    run(world, ScheduleGPipe, 4, 8 if world.rank else 3)


@pytest.mark.world_size(2, timeout=6)
def test_ranks_that_disagree(process_group, world):
    micro_batches = 2 + 2 * world.rank  # of four rows each
    run(world, ScheduleGPipe, micro_batches, 4 * micro_batches)
"""

SAYS = {
    "test_too_few_micro_batches[world4]": (
        "ranks 0-3 of 4 failed in their call",
        "ValueError: Number of microbatches (2) must be greater than or equal to",
    ),
    # The first piece has three rows and says what the others are; where no loss looks at the rows,
    # the missing one is whatever was in memory.
    "test_ragged[world2-10]": (
        "rank 1 of 2 failed in its call",
        "rank 0 was stopped by pytest-shardcheck",
        "send of float32 [2, 4] (32 B) on rank 0, recv of float32 [3, 4] (48 B) on rank 1",
        "an uneven batch",
    ),
    "test_more_micro_batches_than_rows[world2]": (
        "rank 0 of 2 failed in its call",
        "ValueError: Expecting 4 arg_mbs but got 3",
        "rank 1 was stopped by pytest-shardcheck",
    ),
    "test_ranks_that_disagree[world2]": (
        "did not end",
        "still running after 6 s",
        "waits in recv",
    ),
}


@pytest.fixture(scope="module")
def session(run_session):
    return run_session({"test_inner.py": SESSION}, "-rA")


@pytest.mark.parametrize("name", SAYS)
def test_what_ends_a_test(session, name):
    failure = session.failure(name)
    for part in SAYS[name]:
        assert part in failure


def test_equal_micro_batches_pass(session):
    assert session.results.get("test_ragged[world2-8]") == ["PASSED"], session.out
