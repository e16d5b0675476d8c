"""The fixtures of a world test: their bodies run in ranks, the session needs their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from pytest_shardcheck.worlds.keys import RANK, SIZES

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from pytest_shardcheck.plugin.handle import Shardcheck
    from pytest_shardcheck.plugin.place import World
    from pytest_shardcheck.vocabulary.errors import UsageError
    from pytest_shardcheck.worlds.rank import RankContext

NAMES: Final = ("process_group", "device_mesh", "world", "shardcheck")


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """Return this rank's place in the world, without initialising a process group."""
    from pytest_shardcheck.plugin.place import place_of

    return place_of(_context(request))


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> ProcessGroup:
    """Return the initialised default process group of this test's world.

    The rank's exit ends it: destroying it would cost half of a world's time. A test may do so.
    """
    return _default_group(_context(request))


@pytest.fixture
def device_mesh(request: pytest.FixtureRequest) -> DeviceMesh:
    """Return the device mesh that the marker names, or one with a single axis called ``world``."""
    from torch.distributed.device_mesh import init_device_mesh

    context = _context(request)
    _default_group(context)
    spec = context.order.spec
    names, lengths = zip(*spec.axes, strict=True)
    return init_device_mesh(spec.device, lengths, mesh_dim_names=names)


@pytest.fixture
def shardcheck(request: pytest.FixtureRequest) -> Shardcheck:
    """Return what measures regions of the test and checks readings."""
    from pytest_shardcheck.plugin.handle import Shardcheck
    from pytest_shardcheck.plugin.snapshots import why_none

    sizes = request.node.stash[SIZES]
    return Shardcheck(_context(request), sizes, why_none(request.config))


def no_world(nodeid: str, what: str) -> UsageError:
    """Return the error of a test that uses what only a world has, with the line to add."""
    from pytest_shardcheck.vocabulary.errors import UsageError

    return UsageError(
        f"{nodeid}: {what}, but no world is given for it. Add\n"
        "    @pytest.mark.world_size(2)\n"
        "above the test (or set a default in the ini file: shardcheck_world_size = 2)."
    )


def _context(request: pytest.FixtureRequest) -> RankContext:
    context = request.config.stash.get(RANK, None)
    if context is None:  # asked for by request.getfixturevalue(), which collection can't see
        raise no_world(request.node.nodeid, f"it requests the fixture {request.fixturename!r}")
    return context


def _default_group(context: RankContext) -> ProcessGroup:
    """Return the default group, initialised by whoever came first: a test may have its own way."""
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        if context.order.spec.device == "cuda":
            torch.cuda.set_device(context.device)
        dist.init_process_group(context.order.spec.backend)
    group = dist.group.WORLD
    assert group is not None
    return group
