"""The mode of a simulated world takes along whoever looks at its operators."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_shardcheck.instruments._torch_private import innermost_dispatch_mode, world_here
from pytest_shardcheck.instruments.dispatch import Ride, StorageMode, to_enter
from pytest_shardcheck.simulation import simulation


class Looking(StorageMode):
    """Keeps the names of the operators that it is shown."""

    def __init__(self):
        super().__init__(None)
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None, run=None):
        self.seen.append(func._schema.name)
        return run(func, types, args, kwargs) if run else func(*args, **(kwargs or {}))


def steps():
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        normed = nn.functional.layer_norm(model(torch.randn(2, 8)), [8])
        # Its shape is found by running other operators, the first time that it is seen.
        nn.functional.cross_entropy(normed, torch.zeros(2, dtype=torch.long)).backward()
        optimizer.step()


def test_it_sees_what_a_mode_of_its_own_would(tmp_path):
    with simulation(tmp_path, 0, (0,)):
        own, riding = Looking(), Looking()
        with to_enter(riding):
            assert innermost_dispatch_mode() is world_here()
            steps()
        with own:
            steps()
        assert riding.seen == [name for name in own.seen if name != "prim::device"]
        assert len(riding.seen) > 30
        riding.seen.clear()
        torch.zeros(1)
        assert riding.seen == []


def test_one_rides_at_a_time(tmp_path):
    with simulation(tmp_path, 0, (0,)):
        first, second = Looking(), Looking()
        with to_enter(first):
            ride = to_enter(second)
            assert ride is second
            with ride:
                torch.zeros(1)
        assert first.seen == second.seen == ["aten::zeros"]
        assert isinstance(to_enter(second), Ride)


def test_an_error_leaves_it_looking(tmp_path):
    with simulation(tmp_path, 0, (0,)), to_enter(looking := Looking()):
        with pytest.raises(RuntimeError, match="same reduction dim"):
            torch.mm(torch.zeros(2, 3), torch.zeros(2, 3))
        looking.seen.clear()
        torch.zeros(1)
        assert looking.seen == ["aten::zeros"]


def test_outside_of_a_world_it_is_a_mode():
    mode = Looking()
    assert to_enter(mode) is mode
