"""A simulated world measures what the real one does, in every way to train that the suite knows.

State, saved activations and all collectives, in order, are the same; live and peak are within
0.1 %, or it is said why not. `python tests/docs/system_tables.py` writes the table of
docs/simulated-equality.md; here each simulated figure is compared with it, and each real one in
test_every_system.py.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from systems import SYSTEMS
from systems.tables import EQUALITY, equal_cells, equal_row, live_cells

from pytest_shardcheck import NoValueError

TABLES = os.environ.get("SHARDCHECK_TABLES")  # where to write figures, instead of comparing them
# Two ranks of most systems say what four would: those are compared where the table is written, or
# with SHARDCHECK_SIMULATED=all, and in each run of their real worlds.
ALL = TABLES or os.environ.get("SHARDCHECK_SIMULATED") == "all"
SIMULATED = [system for system in SYSTEMS if not system.unsimulated]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]


def over(*sizes):
    chosen = [system for system in SIMULATED if system.sizes == sizes]
    run = sizes if ALL else sizes[:1]

    def decorate(function):
        function = pytest.mark.world_size(*run, simulate=True, ranks="all")(function)
        return pytest.mark.parametrize("system", chosen, ids=lambda system: system.id)(function)

    return decorate


@over(2, 4)
def test_at_two_sizes(system, device_mesh, shardcheck, world):
    hold(system, device_mesh, shardcheck, world)


@pytest.mark.skipif(bool(ALL), reason="all systems are simulated at four ranks")
@pytest.mark.world_size(4, simulate=True, ranks="all")
@pytest.mark.parametrize(
    "system",
    [s for s in SIMULATED if s.page == "pipelines" and s.sizes == (2, 4)],
    ids=lambda system: system.id,
)
def test_pipelines_of_four(system, device_mesh, shardcheck, world):
    hold(system, device_mesh, shardcheck, world)


@over(4)
def test_at_four_ranks(system, device_mesh, shardcheck, world):
    hold(system, device_mesh, shardcheck, world)


def hold(system, mesh, shardcheck, world):
    for package in system.packages:
        pytest.importorskip(package)
    training = system.build(mesh)
    shardcheck.watch(*training.watched)
    training.step()
    training.step()
    with shardcheck.measure(*training.watched) as measurement:
        training.step()
    readings = shardcheck.gather(measurement.reading)
    cells, live = equal_cells(system.name, readings), live_cells(readings)
    if TABLES and world.rank == 0:
        Path(TABLES, f"{system.id}-{world.size}-simulated").write_text("\n".join([*cells, *live]))
    elif not TABLES:
        written = equal_row(system.name, world.size)
        assert written[: len(cells)] == cells
        assert written[len(cells) + 2 : len(cells) + 4] == live


@pytest.mark.world_size(2, simulate=True)
@pytest.mark.parametrize(
    "system", [s for s in SYSTEMS if s.unsimulated], ids=lambda system: system.id
)
def test_what_needs_values_says_so(system, device_mesh):
    for package in system.packages:
        pytest.importorskip(package)
    training = system.build(device_mesh)
    with pytest.raises(NoValueError, match="needs a value that depends on what a tensor holds"):
        twice(training.step)


def twice(step):
    step()
    step()


@pytest.mark.parametrize("system", SIMULATED, ids=lambda system: system.id)
def test_live_and_peak_are_equal_or_explained(system):
    for size in system.sizes:
        live, peak, simulated_live, simulated_peak, why = equal_row(system.name, size)[6:]
        assert within(0.001, live, simulated_live)
        assert within(0.001, peak, simulated_peak) or why.removesuffix(" |") == system.other_peak
        assert not system.other_peak or not within(0.001, peak, simulated_peak)


def within(share, *cells):
    one, other = ([int(n.replace(",", "")) for n in cell.split(" to ")] for cell in cells)
    return all(abs(a - b) <= share * a for a, b in zip(one, other, strict=True))


def test_every_row_is_a_systems():
    rows = [line for line in EQUALITY.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) - 1 == sum(len(system.sizes) for system in SIMULATED)
