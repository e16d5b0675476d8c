"""What a rank of a simulated world can do, and what it says where it can't."""

from __future__ import annotations

import pytest

WORLDS = """
    import pytest, torch
    import torch.distributed as dist
    from torch import nn

    BEFORE = torch.ones(4)

    @torch.compile
    def compiled(x):
        return x.sin() + 1

    def simulated(*sizes, **options):
        return pytest.mark.world_size(*sizes, simulate=True, **options)

    @simulated(8, ranks=[3])
    def test_item(process_group):
        loss = torch.ones(3).sum()
        print(loss.item())

    @simulated(8, ranks=[3])
    def test_shape(process_group):
        torch.randn(3).nonzero()

    @simulated(8, ranks=[3])
    def test_numpy(process_group):
        torch.randn(3).numpy()

    @simulated(8, ranks=[3])
    def test_save(process_group, tmp_path):
        torch.save({"step": 3}, tmp_path / "number.pt")
        assert torch.load(tmp_path / "number.pt") == {"step": 3}
        torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "model.pt")

    @simulated(8, ranks=[3])
    def test_library_asks(process_group):
        nn.utils.get_total_norm([torch.randn(3)], error_if_nonfinite=True)

    @simulated(8, ranks=[3])
    def test_sum_of_a_known_number(process_group):
        count = torch.tensor(5.0)
        assert count.item() == 5
        dist.all_reduce(count)
        count.item()

    @simulated(64)
    def test_all_ranks_alike(world):
        assert world.size == 1

    @simulated(64)
    def test_one_rank(world):
        assert world.rank != 63

    @simulated(64)
    def test_last_dies(world):
        if world.rank == 63:
            import os
            os._exit(3)

    @simulated(4, ranks=[0])
    def test_message_to_nobody(process_group):
        dist.recv_object_list([None], src=1)

    @simulated(4, ranks=[0])
    def test_gather_object(process_group):
        dist.gather_object("mine", [None] * 4, dst=0)

    @simulated(4)
    def test_inductor(process_group):
        compiled(torch.randn(4))

    @simulated(4, ranks=[0])
    def test_write_into_what_was_before(process_group):
        BEFORE.copy_(torch.randn(4))

    @simulated(4, ranks=[0])
    def test_reduce_what_was_before(process_group):
        dist.all_reduce(BEFORE)

    @simulated(4, ranks=[0])
    @pytest.mark.parametrize("move", [
        lambda: torch.zeros(3, device="cuda"),
        lambda: nn.Linear(2, 2).to("cuda:1"),
        lambda: nn.Linear(2, 2, device="cuda"),
    ], ids=["made", "moved", "built"])
    def test_on_a_gpu(move):
        move()

    @simulated(16, mesh={"dp": 4, "tp": -1}, ranks=[6])
    def test_place(world, device_mesh, tmp_path):
        assert (world.rank, world.size, world.simulated) == (6, 16, True)
        assert dist.get_rank() == 6 and dist.get_world_size() == 16
        assert dist.get_backend() == "gloo"
        assert tuple(device_mesh.get_coordinate()) == (1, 2)
        assert device_mesh["tp"].mesh.tolist() == [4, 5, 6, 7]
        group = dist.new_group([2, 6])
        assert dist.get_process_group_ranks(group) == [2, 6]
        assert dist.get_rank(group) == 1
        (tmp_path / "file").write_text("shared")
        assert BEFORE.sum().item() == 4  # what was real before is so among its like
        assert tuple((BEFORE + torch.randn(4)).shape) == (4,)

    @simulated(4)
    @pytest.mark.world_size(2)
    def test_of_both_kinds(world):
        assert world.simulated == (world.size == 4)
        dist.init_process_group("gloo")
        assert dist.get_world_size() == world.size
        ones = torch.ones(2)
        dist.all_reduce(ones)
        assert world.simulated or ones.tolist() == [2, 2]

    @simulated(3, ranks="all")
    def test_objects_travel(world, process_group):
        objects = [None] * 3
        dist.all_gather_object(objects, {"rank": world.rank})
        assert [one["rank"] for one in objects] == [0, 1, 2]
        told = [world.rank if world.rank == 1 else None]
        dist.broadcast_object_list(told, src=1)
        assert told == [1]
        if world.rank == 0:
            dist.send_object_list(["hello"], dst=2)
        elif world.rank == 2:
            dist.recv_object_list(told, src=0)
            assert told == ["hello"]

    @simulated(2, ranks=[0])
    def test_conversions(world, shardcheck):
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        weight = model[0].weight
        with shardcheck.measure(model) as measured:
            pass
        assert measured.reading.memory.params == (64 + 8 + 16) * 4
        model.to(torch.bfloat16)
        model.to("cpu:0")
        assert model[0].weight is weight and weight.dtype == torch.bfloat16
        with shardcheck.measure(model) as measured:
            model(torch.randn(3, 8, dtype=torch.bfloat16)).sum().backward()
        assert measured.reading.memory.params == (64 + 8 + 16) * 2

    @simulated(2, ranks=[0])
    def test_from_the_meta_device(world, shardcheck):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        model.to_empty(device="cpu")
        assert model[0].weight.device.type == "cpu"
        with shardcheck.measure(model) as measured:
            model(torch.randn(3, 8)).sum().backward()
        memory = measured.reading.memory
        assert (memory.params, memory.grads, memory.buffers) == (352, 352, 2 * 32 + 8)

    @simulated(2, ranks=[0])
    def test_compiled_by_aot_eager(process_group):
        double = torch.compile(lambda x: x * 2, backend="aot_eager")
        assert double(torch.randn(4)).shape == (4,)

    @simulated(2, ranks=[0])
    def test_random_numbers(process_group):
        state = torch.get_rng_state()
        torch.manual_seed(3)
        torch.randn(5)
        torch.set_rng_state(state)
        assert state.sum().item() > 0
"""

GPUS = ("made", "moved", "built")
PASSING = {
    "test_place[dp4xtp4-simulated]",
    "test_of_both_kinds[world2]",
    "test_of_both_kinds[world4-simulated]",
    "test_objects_travel[world3-simulated]",
    "test_conversions[world2-simulated]",
    "test_from_the_meta_device[world2-simulated]",
    "test_compiled_by_aot_eager[world2-simulated]",
    "test_random_numbers[world2-simulated]",
}

FAILING = {
    "test_item[world8-simulated]": [
        "rank 3 of 8 failed in its call",
        "test_it.py:18: this needs a value that depends on what a tensor holds",
        "if not world.simulated:",
    ],
    "test_shape[world8-simulated]": ["this needs a shape that depends on what a tensor holds"],
    "test_numpy[world8-simulated]": ["numpy() needs what a tensor holds"],
    "test_save[world8-simulated]": ["torch.save() needs what tensors hold"],
    "test_library_asks[world8-simulated]": [
        "(torch/nn/utils/clip_grad.py:",
        "asks): this needs a value",
    ],
    "test_sum_of_a_known_number[world8-simulated]": ["this needs a value"],
    "test_all_ranks_alike[world64-simulated]": ["ranks 0, 63 of 64 failed in their call"],
    "test_one_rank[world64-simulated]": ["rank 63 of 64 failed in its call"],
    "test_last_dies[world64-simulated]": ["rank 63 of 64 died in its call", "exit code 3"],
    "test_message_to_nobody[world4-simulated]": [
        "a message between rank 0 and rank 1, which is not simulated",
        'ranks="all"',
    ],
    "test_inductor[world4-simulated]": [
        "torch.compile with inductor in a simulated world",
        'backend="aot_eager"',
    ],
    "test_gather_object[world4-simulated]": ["gather_ in a simulated world on tensors with values"],
    "test_write_into_what_was_before[world4-simulated]": [
        "writes into a tensor of shape [4] that was made before the test"
    ],
    **{
        f"test_on_a_gpu[world4-simulated-{how}]": ["a tensor on cuda", "Take the device from"]
        for how in GPUS
    },
    "test_reduce_what_was_before[world4-simulated]": [
        "allreduce_ in a simulated world on tensors with values",
        "made before the test",
    ],
}


@pytest.fixture(scope="module")
def session(run_session):
    return run_session({"test_it.py": WORLDS}, "-q", "-rA")


def test_what_works(session):
    assert {name for name, words in session.results.items() if words == ["PASSED"]} == PASSING


@pytest.mark.parametrize("name", FAILING)
def test_what_does_not_says_so(session, name):
    failure = session.failure(name)
    for text in FAILING[name]:
        assert text in failure, failure


def test_only_simulated_ranks_are_counted(session):
    worlds = len(PASSING) + len(FAILING)
    assert f"shardcheck: {worlds} worlds, " in session.out
    assert session.files_left() == []


def test_fresh_interpreters_simulate_too(run_session):
    test = """
        import pytest, torch.distributed as dist

        @pytest.mark.world_size(64, simulate=True)
        def test_it(world, process_group):
            assert world.simulated and dist.get_world_size() == 64
            assert world.rank in (0, 63)
    """
    session = run_session({"test_it.py": test}, "-q", "--shardcheck-start=spawn")
    assert session.outcomes == {"passed": 1}, session.out
