"""The fixtures of a world test: what they hand out, in real worlds of two and four ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

GROUPS = """
import os

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world_size(2)
def test_process_group(process_group):
    assert process_group is dist.group.WORLD
    assert isinstance(process_group, dist.ProcessGroup)
    assert process_group.size() == 2
    value = torch.ones(1) * (process_group.rank() + 1)
    dist.all_reduce(value)
    assert value.item() == 3


@pytest.mark.world_size(2)
def test_default_mesh(device_mesh):
    assert device_mesh.mesh_dim_names == ("world",)
    assert tuple(device_mesh.shape) == (2,)
    assert device_mesh.device_type == "cpu"
    assert dist.is_initialized()


@pytest.mark.world_size(mesh={"dp": 2, "tp": 2})
def test_named_mesh(device_mesh, world):
    assert device_mesh.mesh_dim_names == ("dp", "tp")
    assert device_mesh.mesh.tolist() == [[0, 1], [2, 3]]
    assert device_mesh["tp"].size() == 2
    assert world.mesh == {"dp": 2, "tp": 2}
    assert world.size == 4
    assert tuple(device_mesh.get_coordinate()) == (world.rank // 2, world.rank % 2)


@pytest.mark.world_size(2)
def test_all_fixtures_at_once(shardcheck, device_mesh, process_group, world):
    assert device_mesh.get_group().size() == process_group.size() == world.size


@pytest.mark.world_size(2)
def test_init_without_arguments(world):
    assert not dist.is_initialized(), "`world` must not initialise a group"
    dist.init_process_group()
    assert dist.get_rank() == world.rank
    assert dist.get_world_size() == 2
    dist.barrier()


@pytest.mark.world_size(2)
def test_init_with_a_backend_and_env_url(world):
    dist.init_process_group("gloo", init_method="env://")
    assert dist.get_rank() == world.rank


@pytest.mark.world_size(2)
def test_destroy_and_init_again(process_group, world):
    for times in range(3):
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == 2
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
    assert dist.get_rank() == world.rank


@pytest.mark.world_size(2)
def test_tcp_url(world):
    address = f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    dist.init_process_group("gloo", init_method=address, rank=world.rank, world_size=world.size)
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == 2


@pytest.mark.world_size(2)
def test_own_store_on_master_port(world):
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world.size, is_master=False
    )
    store.set(f"rank{world.rank}", "here")
    assert store.get(f"rank{1 - world.rank}") == b"here"
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)


@pytest.mark.world_size(2)
def test_own_group_before_the_fixture(request, world):
    dist.init_process_group("gloo")
    theirs = dist.group.WORLD
    assert request.getfixturevalue("process_group") is theirs


@pytest.mark.world_size(2)
def test_asked_for_in_the_body(request):
    shardcheck = request.getfixturevalue("shardcheck")
    with shardcheck.measure(torch.nn.Linear(2, 2)) as reading:
        pass
    assert reading.memory.params == 24


@pytest.mark.world_size(1)
def test_a_world_of_one(device_mesh, process_group, world):
    assert process_group.size() == world.size == 1
    dist.barrier()
"""

WORLD = """
import dataclasses
import os
import pathlib

import pytest
import torch


@pytest.mark.world_size(2)
def test_fields(world):
    assert world.rank in (0, 1)
    assert world.size == 2
    assert world.local_rank == world.rank
    assert world.backend == "gloo"
    assert world.device == "cpu"
    assert world.mesh == {"world": 2}
    assert world.simulated is False
    assert isinstance(world.tmp_path, pathlib.Path)
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.rank = 5


@pytest.mark.world_size(2)
def test_environment(world):
    names = (
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"
    )
    assert [os.environ[name] for name in names] == [
        str(world.rank), "2", str(world.rank), "2", "0", "127.0.0.1"
    ]
    assert 1024 < int(os.environ["MASTER_PORT"]) < 65536
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert torch.get_num_threads() == 1
    assert not torch.distributed.is_initialized()


@pytest.mark.world_size(2)
def test_tmp_path_is_shared(tmp_path, world, process_group):
    assert tmp_path.is_dir()
    (tmp_path / str(world.rank)).touch()
    torch.distributed.barrier()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


@pytest.mark.world_size(2)
@pytest.mark.parametrize("number", [1, 2])
def test_tmp_path_is_new_in_every_test(tmp_path, process_group, number):
    assert list(tmp_path.iterdir()) == []
    torch.distributed.barrier()
    (tmp_path / "left").touch()


@pytest.mark.world_size(2)
def test_own_tmp_path(tmp_path, world, process_group):
    assert world.tmp_path.is_dir()
    assert world.tmp_path != tmp_path
    assert list(world.tmp_path.iterdir()) == []
    torch.distributed.barrier()
    (world.tmp_path / str(world.rank)).touch()
    torch.distributed.barrier()
    assert [path.name for path in world.tmp_path.iterdir()] == [str(world.rank)]


@pytest.mark.world_size(2)
def test_tmp_path_factory_does_not_collide(tmp_path_factory, process_group):
    path = tmp_path_factory.mktemp("same", numbered=False)
    torch.distributed.barrier()
    assert list(path.iterdir()) == []


@pytest.mark.world_size(2)
def test_shardcheck_needs_no_group(shardcheck):
    with shardcheck.measure(torch.nn.Linear(2, 2)) as reading:
        pass
    assert reading.memory.params == 24
    assert [other.memory.params for other in shardcheck.gather(reading)] == [24, 24]
    assert not torch.distributed.is_initialized()


class TestClass:
    @pytest.mark.world_size(2)
    def test_method(self, world):
        assert world.size == 2
"""

SEED = """
import os
import pathlib
import random

import numpy
import pytest
import torch


@pytest.mark.world_size(2)
def test_seed(world):
    drawn = [
        torch.initial_seed(), torch.rand(()).item(), random.random(), numpy.random.random()
    ]
    (pathlib.Path(os.environ["SEEDS"]) / str(world.rank)).write_text(repr(drawn))
"""

OVERRIDDEN = """
import unittest

import pytest
import torch


@pytest.fixture
def world():
    return "theirs"


@pytest.fixture
def tmp_path():
    return "their own path"


@pytest.fixture
def process_group(process_group):
    return process_group.size() * 10


def test_their_world_needs_no_marker(world):
    assert world == "theirs"


@pytest.mark.world_size(2)
@pytest.mark.memory(params=24)
def test_overridden(world, device_mesh, shardcheck, process_group, tmp_path):
    assert world == "theirs"
    assert tmp_path == "their own path"
    assert process_group == 20
    assert device_mesh.size() == 2
    with shardcheck.measure(torch.nn.Linear(2, 2)):
        pass


class TestMethods(unittest.TestCase):
    @pytest.mark.world_size(2)
    def test_method(self):
        torch.distributed.init_process_group()
        self.assertEqual(torch.distributed.get_world_size(), 2)

    @pytest.fixture(autouse=True)
    def _pass_on(self, world):
        self.world = world

    @pytest.mark.world_size(2)
    def test_fixture(self):
        self.assertEqual(self.world, "theirs")
"""


def test_groups_and_worlds(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # must not decide how many threads a rank has
    monkeypatch.setenv("WORLD_SIZE", "64")  # nor what else a launcher left behind
    monkeypatch.setenv("RANK", "17")
    pytester.makepyfile(test_groups=GROUPS, test_world=WORLD, test_overridden=OVERRIDDEN)

    result = pytester.runpytest_subprocess("-q", "-p", "no:randomly")

    result.assert_outcomes(passed=12 + 9 + 4)
    result.stdout.fnmatch_lines(["shardcheck: 24 worlds, 49 ranks"])
    assert "held and sent" not in result.stdout.str(), "the table is for --shardcheck-report"


def test_every_rank_has_the_same_seed_under_fork_and_spawn(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(test_seed=SEED)
    seeds = []
    for start in ("fork", "spawn"):
        monkeypatch.setenv("SEEDS", str(pytester.mkdir(start)))
        result = pytester.runpytest_subprocess(
            "-q", "-p", "no:randomly", f"--shardcheck-start={start}"
        )
        result.assert_outcomes(passed=1)
        seeds += [path.read_text() for path in (pytester.path / start).iterdir()]

    assert len(seeds) == 4
    assert len(set(seeds)) == 1, seeds


@pytest.mark.parametrize("fixture", ["process_group", "device_mesh", "world", "shardcheck"])
def test_a_fixture_without_a_world_is_a_usage_error(
    pytester: pytest.Pytester, fixture: str
) -> None:
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.fixture
        def indirectly({fixture}):
            return {fixture}

        def test_directly({fixture}):
            pass

        def test_indirectly(indirectly):
            pass
        """
    )

    result = pytester.runpytest("-q", "-p", "no:randomly")

    assert result.ret != 0
    for name in ("test_directly", "test_indirectly"):
        result.stdout.fnmatch_lines(
            [
                f"*::{name}: it requests the fixture '{fixture}', but no world is given*",
                "    @pytest.mark.world_size(2)",
                "*shardcheck_world_size = 2*",
            ]
        )


def test_a_fixture_asked_for_in_the_body_without_a_world_is_explained(
    pytester: pytest.Pytester,
) -> None:
    # Collection can't see getfixturevalue().
    pytester.makepyfile(
        """
        def test_it(request):
            request.getfixturevalue("world")
        """
    )

    result = pytester.runpytest("-q")

    assert result.ret != 0
    result.stdout.fnmatch_lines(["*@pytest.mark.world_size(2)*"])


def test_the_ini_default_is_for_tests_that_use_our_fixtures(
    pytester: pytest.Pytester, ids_of: Callable[..., list[str]]
) -> None:
    pytester.makeini("[pytest]\nshardcheck_world_size = 2 3\n")
    pytester.makepyfile(
        test_default="""
        import unittest
        import pytest

        def test_ours(world):
            pass

        def test_plain():
            pass

        @pytest.mark.world_size(4)
        def test_marked(world):
            pass

        @pytest.mark.usefixtures("process_group")
        def test_by_usefixtures():
            pass

        class TestMethods(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def _pass_on(self, world):
                self.world = world

            def test_method(self):
                pass
        """
    )

    assert ids_of() == [
        "test_default.py::test_ours[world2]",
        "test_default.py::test_ours[world3]",
        "test_default.py::test_plain",
        "test_default.py::test_marked[world4]",
        "test_default.py::test_by_usefixtures[world2]",
        "test_default.py::test_by_usefixtures[world3]",
        "test_default.py::TestMethods::test_method[world2]",
        "test_default.py::TestMethods::test_method[world3]",
    ]
