"""Where a rank's code stands: phase, module, and the user's line, at each operator."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from pytest_shardcheck.instruments.surroundings import Surroundings, text_of

HERE = Path(__file__).name


@dataclass
class Seen:
    operator: str
    phase: str
    module: str
    line: str


@dataclass
class Recorder:
    """Asks at each operator, as the instruments do."""

    surroundings: Surroundings = field(default_factory=Surroundings)
    seen: list[Seen] = field(default_factory=list)

    def of(self, operator: str) -> list[Seen]:
        return [each for each in self.seen if each.operator.startswith(operator)]

    def phases(self, operator: str) -> list[str]:
        return [each.phase for each in self.of(operator)]


@pytest.fixture
def recorder():
    recorder = Recorder()
    surroundings = recorder.surroundings

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            # Two frames up: this one stands in a test's file.
            line = text_of(surroundings.line(2))
            label = surroundings.module()
            recorder.seen.append(Seen(str(func), surroundings.phase(), label.name, line))
            return result

    surroundings.start()
    with Mode():
        yield recorder
    surroundings.stop()


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)))


def test_the_phases_of_a_step(recorder: Recorder) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)
    net(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert recorder.phases("aten.addmm") == ["forward", "forward"]
    assert set(recorder.phases("aten.mm")) == {"backward"}
    assert recorder.phases("aten._foreach_add_") == ["optimizer"]
    torch.ones(1)
    assert recorder.seen[-1].phase == "forward"


def test_modules_in_forward_and_in_backward(recorder: Recorder) -> None:
    net = model()
    recorder.surroundings.learn([net])
    net(torch.ones(2, 4)).sum().backward()
    assert [seen.module for seen in recorder.of("aten.addmm")] == ["0", "1.1"]
    assert [seen.module for seen in recorder.of("aten.mm")] == ["1.1", "1.1", "0"]
    assert [seen.module for seen in recorder.of("aten.threshold_backward")] == ["1.0"]
    assert [seen.module for seen in recorder.of("aten.sum.default")] == [""]


def test_the_module_whose_own_forward_hook_issues_a_call(recorder: Recorder) -> None:
    net, callers = model(), []
    around = recorder.surroundings
    around.learn([net])

    def issue(*_: object) -> None:
        callers.append((around.caller().name, around.module().name))

    for module in (net[0], net[1][1], net):
        module.register_forward_hook(issue)
    net[1].register_forward_pre_hook(issue)
    net(torch.ones(2, 4))
    issue()
    # It has ended, and `module` says its parent's name.
    expected = [("0", "Sequential"), ("1", "1"), ("1.1", "1"), ("Sequential", ""), ("", "")]
    assert callers == expected


def test_an_unknown_module_is_its_class_until_it_is_learnt(recorder: Recorder) -> None:
    net = model()
    label = recorder.surroundings._label(net[0])
    assert label.name == "Linear"
    recorder.surroundings.learn([net])
    assert label.name == "0"


def test_recomputation_is_backward_and_in_its_module(recorder: Recorder) -> None:
    net = model()
    recorder.surroundings.learn([net])
    batch = torch.ones(2, 4, requires_grad=True)
    for reentrant in (False, True):
        recorder.seen.clear()
        checkpoint(net, batch, use_reentrant=reentrant).sum().backward()
        found = [(seen.phase, seen.module) for seen in recorder.of("aten.addmm")]
        forward, recomputed = found[:2], found[2:]
        assert forward == [("forward", "0"), ("forward", "1.1")]
        # The last layer's output is saved by nobody: the non-reentrant one stops before it.
        again = ["0", "1.1"] if reentrant else ["0"]
        assert recomputed == [("backward", module) for module in again]


def test_gradient_accumulation_interleaves(recorder: Recorder) -> None:
    net = model()
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()
    assert recorder.phases("aten.addmm") == ["forward"] * 4
    order = [seen.phase for seen in recorder.seen]
    turns = [phase for at, phase in enumerate(order) if at == 0 or order[at - 1] != phase]
    assert turns[-4:] == ["forward", "backward", "forward", "backward"]


def test_a_step_inside_a_gradient_hook_is_optimizer(recorder: Recorder) -> None:
    net = nn.Linear(4, 4)
    optimizers = {p: torch.optim.SGD([p], lr=0.1, foreach=True) for p in net.parameters()}
    for param in net.parameters():
        param.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    net(torch.ones(2, 4)).sum().backward()
    assert recorder.phases("aten._foreach_add_") == ["optimizer", "optimizer"]
    assert set(recorder.phases("aten.mm")) == {"backward"}


def test_a_closure_inside_a_step_has_its_own_phases(recorder: Recorder) -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)

    def closure() -> torch.Tensor:
        loss = net(torch.ones(2, 4)).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert set(recorder.phases("aten.mm")) == {"backward"}
    assert recorder.phases("aten._foreach_add_") == ["optimizer"]


def test_a_step_that_raised_ends_with_the_next_region(recorder: Recorder) -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(2, 4)).sum().backward()
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 / 0)
    recorder.surroundings.settle()
    torch.ones(1)
    assert recorder.seen[-1].phase == "forward"


def test_a_module_that_raised_is_left(recorder: Recorder) -> None:
    net = nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        net(torch.ones(2, 3))
    torch.ones(1)
    assert recorder.seen[-1].module == ""


def test_threads_have_their_own_modules(recorder: Recorder) -> None:
    net = nn.Linear(4, 4)
    labels: list[str] = []

    class Asks(nn.Module):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            other = threading.Thread(
                target=lambda: labels.append(recorder.surroundings.module().name)
            )
            other.start()
            other.join()
            return net(batch)

    Asks()(torch.ones(2, 4))
    assert labels == [""]


def test_the_line_is_the_users(recorder: Recorder) -> None:
    net = model()
    loss = net(torch.ones(2, 4)).sum()
    loss.backward()
    lines = {seen.line for seen in recorder.of("aten.addmm")}
    backward = {seen.line for seen in recorder.of("aten.mm")}
    assert len(lines) == len(backward) == 1
    assert int(backward.pop().rpartition(":")[2]) == int(lines.pop().rpartition(":")[2]) + 1


def test_lines_are_written_from_the_current_directory(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    assert text_of((__file__, 3)) == f"{HERE}:3"
    monkeypatch.chdir(tmp_path)
    assert text_of((__file__, 3)) == f"{__file__}:3"
    assert text_of(None) == ""


def test_nothing_is_left_behind() -> None:
    surroundings = Surroundings()
    surroundings.start()
    surroundings.stop()
    from torch.nn.modules import module

    assert not module._global_forward_pre_hooks
    assert not module._global_forward_hooks
