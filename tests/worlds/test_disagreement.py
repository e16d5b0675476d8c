"""Ranks that disagree in a collective fail their test, and it says in which call; others pass."""

from __future__ import annotations

import pytest

HEAD = """
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def rank():
        return dist.get_rank()
"""

DISAGREE = """
    def test_dtype(process_group, shardcheck):
        value = torch.ones(4, dtype=torch.float32 if rank() == 0 else torch.int32)
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(value)

    def test_one_fewer(process_group, shardcheck):
        dist.broadcast(torch.ones(4), 0)
        if rank() == 0:
            dist.broadcast(torch.ones(4), 0, async_op=True)

    def test_message(process_group, shardcheck):
        if rank() == 0:
            dist.send(torch.ones(4), 1)
        else:
            dist.recv(torch.ones(4, dtype=torch.int32), 0)

    @pytest.mark.memory(params=1)
    def test_both(process_group, shardcheck):
        value = torch.ones(4, dtype=torch.float32 if rank() == 0 else torch.int32)
        with shardcheck.measure(torch.nn.Linear(1, 1)):
            dist.all_reduce(value)

    @pytest.mark.xfail(raises=AssertionError, strict=True)
    def test_expected(process_group, shardcheck):
        dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank() == 0 else torch.int32))

    def test_untracked(process_group):
        dist.all_reduce(torch.ones(4, dtype=torch.float32 if rank() == 0 else torch.int32))
"""

AGREE = """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B
    from torch.distributed.fsdp import fully_shard

    def test_uneven_all_to_all(process_group, shardcheck):
        splits = [[1, 2], [3, 4]]
        mine, theirs = splits[rank()], [row[rank()] for row in splits]
        out = torch.empty(sum(theirs))
        dist.all_to_all_single(out, torch.ones(sum(mine)), theirs, mine)

    def test_objects(process_group, shardcheck):
        mine = "x" * (10 if rank() == 0 else 1000)
        everyone = [None, None]
        dist.all_gather_object(everyone, mine)
        assert [len(one) for one in everyone] == [10, 1000]
        dist.gather_object(mine, everyone if rank() == 1 else None, dst=1)
        dist.broadcast_object_list([mine], src=1)
        dist.scatter_object_list([None], [mine, 7] if rank() == 0 else None, src=0)
        if rank() == 0:
            dist.send_object_list([mine], dst=1)
        else:
            dist.recv_object_list([None], src=0)

    def test_roots(process_group, shardcheck):
        value = torch.ones(4)
        parts = [torch.ones(4), torch.ones(4)]
        dist.gather(value, parts if rank() == 0 else None, dst=0)
        dist.scatter(value, parts if rank() == 1 else None, src=1)
        dist.reduce(value, 1)
        dist.barrier()
        dist.monitored_barrier()

    def test_a_group_of_one(process_group, shardcheck):
        for member in range(2):
            group = dist.new_group([member])
            if rank() == member:
                dist.all_reduce(torch.ones(4 + member), group=group)

    def test_shapes_of_one_size(process_group, shardcheck):
        dist.all_reduce(torch.ones(2, 3) if rank() == 0 else torch.ones(6))

    def test_messages(process_group, shardcheck):
        if rank() == 0:
            dist.send(torch.ones(3), 1, tag=1)
            dist.send(torch.ones(4), 1, tag=2)
        else:
            late = dist.irecv(torch.empty(4), 0, tag=2)
            dist.recv(torch.empty(3), 0, tag=1)
            late.wait()

    def test_from_anyone(process_group, shardcheck):
        if rank() == 0:
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.empty(3))

    def test_pipeline(process_group, shardcheck):
        stage = PipelineStage(torch.nn.Linear(4, 4), rank(), 2, torch.device("cpu"))
        loss = torch.nn.functional.mse_loss
        schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=loss)
        for _ in range(2):
            if rank() == 0:
                schedule.step(torch.ones(4, 4))
            else:
                schedule.step(target=torch.ones(4, 4))

    def test_uneven_shards(process_group, shardcheck):
        model = torch.nn.Linear(3, 5)
        fully_shard(model)
        model(torch.ones(1, 3)).sum().backward()

    def test_an_expected_refusal(process_group, shardcheck):
        if rank() == 0:
            with pytest.raises(RuntimeError):
                process_group.broadcast(torch.ones(2), 7)
        dist.barrier()

    def test_an_expected_error(process_group, shardcheck):
        if rank() == 0:
            with pytest.raises(RuntimeError):
                dist.recv(torch.ones(2), 1)
        else:
            dist.destroy_process_group()
"""

TROUBLE = """
    pytestmark = pytest.mark.world_size(2, timeout=4)

    def test_size(process_group):
        dist.all_reduce(torch.ones(4 if rank() == 0 else 4096))

    def test_operation(process_group):
        if rank() == 0:
            dist.reduce(torch.ones(4), 0)
        else:
            dist.broadcast(torch.ones(4), 1)

    def test_order_of_groups(process_group):
        a = dist.new_group([0, 1], group_desc="a")
        b = dist.new_group([0, 1], group_desc="b")
        for group in (a, b) if rank() == 0 else (b, a):
            dist.all_reduce(torch.ones(4), group=group)

    def test_one_fewer(process_group):
        for _ in range(3 if rank() == 0 else 2):
            dist.all_reduce(torch.ones(4))

    def test_unrelated(process_group):
        dist.barrier()
        assert rank() == 0
        dist.barrier()
"""


@pytest.fixture(scope="module")
def disagreeing(run_session):
    return run_session({"test_it.py": HEAD + DISAGREE}, "-rA")


@pytest.fixture(scope="module")
def troubled(run_session):
    return run_session({"test_it.py": HEAD + TROUBLE}, "-rA")


def test_what_gloo_lets_pass_fails(disagreeing):
    assert disagreeing.outcomes == {"failed": 4, "passed": 1, "xfailed": 1}


def test_a_dtype(disagreeing):
    text = disagreeing.failure("test_dtype[world2]")
    assert (
        "ranks disagree in the default group: call #2 is all_reduce of float32 [4] (16 B) at "
        "test_it.py:13 on rank 0, all_reduce of int32 [4] (16 B) at test_it.py:13 on rank 1"
    ) in text
    assert "look for a branch on the rank, a cast, or an uneven batch" in text


def test_a_call_that_one_rank_did_not_make(disagreeing):
    assert (
        "call #2 is broadcast of float32 [4] (16 B) with root 0 at test_it.py:18 on rank 0, and "
        "missing on rank 1: the last one there is #1, broadcast of float32 [4] (16 B) with root 0 "
        "at test_it.py:16"
    ) in disagreeing.failure("test_one_fewer[world2]")


def test_a_message(disagreeing):
    assert (
        "message #1 from rank 0 to rank 1 is send of float32 [4] (16 B) at test_it.py:22 on rank "
        "0, recv of int32 [4] (16 B) at test_it.py:24 on rank 1"
    ) in disagreeing.failure("test_message[world2]")


def test_it_leads_what_the_markers_say(disagreeing):
    text = disagreeing.failure("test_both[world2]")
    assert text.index("ranks disagree") < text.index("memory(params): 1 B was expected")


def test_what_legitimately_differs_passes(run_session):
    session = run_session({"test_it.py": HEAD + AGREE}, "-rA")
    assert session.outcomes == {"passed": 11}, session.out


def test_a_size_that_gloo_aborts_on(troubled):
    text = troubled.failure("test_size[world2]")
    assert "killed by SIGABRT" in text
    assert (
        "ranks disagree in the default group: call #1 is all_reduce of float32 [4] (16 B) on rank "
        "0, all_reduce of float32 [4096] (16,384 B) on rank 1"
    ) in text


def test_an_operation_that_hangs(troubled):
    text = troubled.failure("test_operation[world2]")
    assert (
        "ranks disagree in the default group: call #1 is reduce of float32 [4] (16 B) with root 0 "
        "on rank 0, broadcast of float32 [4] (16 B) with root 1 on rank 1"
    ) in text
    assert text.index("ranks disagree") < text.index("Last collectives:")


def test_two_groups_in_another_order(troubled):
    assert (
        "ranks disagree in the order of two groups: rank 0 waits in call #1 of group a, all_reduce "
        "of float32 [4] (16 B), and rank 1 waits in call #1 of group b, all_reduce"
    ) in troubled.failure("test_order_of_groups[world2]")


def test_a_call_that_one_rank_never_makes(troubled):
    text = troubled.failure("test_one_fewer[world2]")
    assert "rank 0 waits in all_reduce #3; rank 1 is 1 behind." in text


def test_a_failure_for_another_reason_says_nothing_of_collectives(troubled):
    text = troubled.failure("test_unrelated[world2]")
    assert "assert 1 == 0" in text
    assert "disagree" not in text
