"""Where the training of a simulated rank is, told where it changes."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_shardcheck.simulation import simulation


def told(tmp_path, body):
    seen = []
    with simulation(tmp_path, 0, (0,), lambda steps, phase: seen.append((steps, phase))):
        body()
    return [now for before, now in zip([None, *seen], seen, strict=False) if now != before]


def test_each_phase_of_each_step(tmp_path):
    def body():
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):
            hidden = checkpoint(model[0], torch.randn(2, 8), use_reentrant=False)
            model[1](hidden).sum().backward()  # what it computes again is backward
            optimizer.step()

    step = ["forward", "backward", "forward", "optimizer"]
    expected = [(0, phase) for phase in step] + [(1, phase) for phase in step] + [(2, "forward")]
    assert told(tmp_path, body) == expected


def test_nothing_is_told_before_a_module_runs(tmp_path):
    def body():
        for _ in range(3):
            nn.Linear(8, 8)

    assert told(tmp_path, body) == []


def test_it_leaves_no_hook(tmp_path):
    seen = []
    with simulation(tmp_path, 0, (0,), lambda *now: seen.append(now)):
        pass
    weight = torch.ones(1, requires_grad=True)
    weight.sum().backward()
    torch.optim.SGD([weight]).step()
    assert seen == []
