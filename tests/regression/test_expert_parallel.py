"""Expert parallel: tokens travel to the ranks of their experts and back, each way what was routed.

M8's layers are eight experts of 32 tokens a rank, d = 256. A step exchanges how many tokens travel,
then dispatches and combines them, and both again in backward.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from steps import third
from systems.parallel import ROUTED, Experts
from torch.optim import AdamW

from pytest_shardcheck import max_collectives

P = 2_105_344
TOKEN = 256 * 4


def measured(shardcheck, routed):
    """Measure the third step."""
    model = Experts(routed)
    optimizer = AdamW(model.parameters())
    tokens = torch.randn(sum(routed), 256, requires_grad=True)  # those of layers before

    def step():
        optimizer.zero_grad()
        model(tokens).sum().backward()
        optimizer.step()

    return third(shardcheck, step, model, optimizer).reading


def sent(rank, size):
    """Return what a rank sends of its 32 tokens: to others, and to its own experts."""
    own = sum(ROUTED[rank * 8 // size : (rank + 1) * 8 // size])
    return 32 - own, own


def on_the_wire(rank, size):
    """Return the bytes of a step: each token that leaves comes back, and both in backward.

    Ranks route alike, so a rank receives its own experts' tokens from each of the others, and sends
    as many back. The counts are int64, eight of them.
    """
    away, own = sent(rank, size)
    return 2 * (away + own * (size - 1)) * TOKEN + 8 * 8 * (size - 1) // size


@pytest.mark.world_size(2, 4)
@pytest.mark.memory(params={2: P // 2, 4: P // 4}, grads={2: P // 2, 4: P // 4})
@pytest.mark.collectives(all_to_all=3, phase="forward")
@pytest.mark.collectives(all_to_all=2, phase="backward")
@pytest.mark.collectives(phase="optimizer")
def test_uneven_splits(process_group, shardcheck, world):
    reading = measured(shardcheck, ROUTED)
    total = reading.collectives.total
    assert total.wire_bytes == on_the_wire(world.rank, world.size)
    # Whatever leaves, a rank puts 32 tokens in and takes out what its experts worked on.
    _, own = sent(world.rank, world.size)
    assert total.bytes == 2 * (32 + own * world.size) * TOKEN + 8 * 8
    # Experts save what they were given: the fullest rank holds most.
    assert reading.saved.bytes == own * world.size * TOKEN


@pytest.mark.world_size(2)
@pytest.mark.max_saved_activations(bytes=26 * 2 * TOKEN, rank=0)  # 10 + 7 + 5 + 4 of each rank
@pytest.mark.max_saved_activations(bytes=6 * 2 * TOKEN, rank=1)  # 3 + 2 + 1
def test_the_first_rank_has_the_popular_experts(process_group, shardcheck):
    measured(shardcheck, ROUTED)


# Each expert gets as many tokens as the most popular one, the rest is padding: 10 x 8 of 32.
@pytest.mark.world_size(2)
def test_splits_padded_to_be_equal(process_group, shardcheck, world):
    right = on_the_wire(world.rank, world.size)
    reading = measured(shardcheck, ROUTED)
    shardcheck.check(reading, max_collectives(wire_bytes=right))
    reading = measured(shardcheck, (max(ROUTED),) * 8)
    padded = 4 * 40 * TOKEN + 32  # half of 80 tokens leaves, comes back, and both again
    with caught(
        f"max_collectives(wire_bytes): the ceiling of {right:,} B",
        f": {padded:,} B",
        "x all_to_all of float32 [80, 256] (81,920 B) in group 'world', forward in Experts at",
    ):
        shardcheck.check(reading, max_collectives(wire_bytes=right))


# A rank that takes its own counts for the others': the splits of a pair of ranks disagree.
SESSION = """
import pytest
import torch
import torch.distributed as dist


@pytest.mark.world_size(2, timeout=20)
@pytest.mark.parametrize("exchanged", [True, False])
def test_splits(exchanged, process_group, world, shardcheck):
    sent = torch.tensor([6, 2] if world.rank == 0 else [5, 3])
    received = torch.empty_like(sent) if exchanged else sent
    if exchanged:
        dist.all_to_all_single(received, sent)
    into, of = received.tolist(), sent.tolist()
    with shardcheck.measure():
        dist.all_to_all_single(torch.empty(sum(into), 4), torch.ones(8, 4), into, of)
"""


def test_splits_that_disagree(run_session):
    session = run_session({"test_inner.py": SESSION}, "-rA")
    assert session.results.get("test_splits[world2-True]") == ["PASSED"], session.out
    failure = session.failure("test_splits[world2-False]")
    assert "ranks disagree in the default group: call #1 is all_to_all" in failure, session.out
