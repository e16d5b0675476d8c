"""What holds of every system of `systems`, in one world each: its peak is the allocator's, its
calls are those that torch's own counter sees, its steps are alike, docs/systems has its row, and
snapshots/ all that a step measures (`--snapshot-update` records it).

`python tests/docs/system_tables.py` writes the tables of docs/systems with it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from systems import SYSTEMS
from systems.tables import PAGES, equal_cells, equal_row, live_cells, row
from torch.distributed.tensor.debug import CommDebugMode

STEPS = int(os.environ.get("STEADY_STEPS", "2"))
TABLES = os.environ.get("SHARDCHECK_TABLES")  # where to write rows, instead of comparing them

pytestmark = [
    pytest.mark.max_memory(allocated="4 GB"),  # naming it follows the allocator
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),  # 2.13 renames
    # Of torch's own counter, whose hooks meet inputs without gradients.
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
    # Over two axes local parts are views.
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]


def over(*sizes):
    """Run on each of the systems that has exactly these world sizes."""
    chosen = [system for system in SYSTEMS if system.sizes == sizes]

    def decorate(function):
        function = pytest.mark.world_size(*sizes)(function)
        return pytest.mark.parametrize("system", chosen, ids=lambda system: system.id)(function)

    return decorate


@over(2, 4)
def test_at_two_sizes(system, device_mesh, shardcheck, world, pytestconfig):
    reading = hold(system, device_mesh, shardcheck, world)
    keep(reading, shardcheck, pytestconfig)


@over(4)
def test_at_four_ranks(system, device_mesh, shardcheck, world, pytestconfig):
    reading = hold(system, device_mesh, shardcheck, world)
    keep(reading, shardcheck, pytestconfig)


def hold(system, mesh, shardcheck, world):
    for package in system.packages:
        pytest.importorskip(package)
    training = system.build(mesh)
    shardcheck.watch(*training.watched)  # so that the warm-up's gradients have their module's name
    training.step()
    training.step()
    readings = []
    for _ in range(STEPS):
        with shardcheck.measure(*training.watched) as measurement:
            training.step()
        readings.append(measurement.reading)
    reading = readings[-1]
    agrees_with_the_allocator(reading.memory, system.share)
    for other in readings[:-1]:
        assert list(differences(figures(other), figures(reading))) == []
    if system.counted:
        agrees_with_torchs_counter(reading.collectives, training)
    readings = shardcheck.gather(reading)
    text = row(system.name, readings)
    cells = [*equal_cells(system.name, readings), *live_cells(readings)]
    if TABLES and world.rank == 0:
        Path(TABLES, f"{system.id}-{world.size}").write_text(text)
        Path(TABLES, f"{system.id}-{world.size}-real").write_text("\n".join(cells))
    elif not TABLES:
        page = (PAGES / f"{system.page}.md").read_text()
        assert text in page.splitlines(), f"{text}\nwrite it: python tests/docs/system_tables.py"
        if not system.unsimulated:
            written = equal_row(system.name, world.size)
            assert written[: len(cells)] == cells, "write it: python tests/docs/system_tables.py"
    return reading


def keep(reading, shardcheck, config):
    # Whoever leaves syrupy out has every other test of the suite.
    if config.pluginmanager.hasplugin("syrupy") and not TABLES:
        shardcheck.snapshot(reading, name="step")


def agrees_with_the_allocator(memory, share):
    least, most = share
    assert least <= memory.peak / memory.allocated <= most
    assert sum(memory.at_peak.values()) == memory.peak
    assert memory.growth == 0


def differences(one, other, where=""):
    """Yield where two nested values differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from differences(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, f"{where}[{at}]")
    elif one != other:
        yield f"{where}: {one} and {other}"


def figures(reading):
    """Return what must be the same in every steady step: everything but when it was."""
    data = reading.to_json()
    del data["occurrence"]
    for device in data["memory"]["allocated_by_device"]:
        data["memory"]["allocated_by_device"][device] = None  # a total since the test's setup
    return data


# What it does not count (see docs/numbers.md), and what it counts twice.
UNCOUNTED = ("send", "recv", "barrier")


def agrees_with_torchs_counter(collectives, training):
    mode = CommDebugMode()
    with mode:
        training.step()
    counted = sum(collectives[name].count for name in collectives if name not in UNCOUNTED)
    assert mode.get_total_counts() == counted
