"""Follow where the training of a simulated rank is, at its operators: nobody may measure it.

Forward is what comes after the first module's call, or after a step; see `instruments.surroundings`
for the rest. Limits: an optimizer that is no `torch.optim.Optimizer` ends no step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pytest_shardcheck.instruments._torch_private import graph_task
from pytest_shardcheck.instruments.surroundings import Surroundings

Tell = Callable[[int, str], object]


class Training:
    """The phase of a rank, told where it changes."""

    def __init__(self, tell: Tell) -> None:
        """Begin before any phase; `tell` gets the number of steps that ended, and the phase."""
        self._tell = tell
        self._steps = 0
        self._stepping = 0
        self._trains = False  # a module was called, or a step ended
        self._surroundings = Surroundings()  # not started: its own hooks cost more
        self.task = graph_task()  # the run of autograd that the last operator stood in

    def install(self, stack: ExitStack) -> None:
        """Follow until the stack unwinds."""
        first = register_module_forward_pre_hook(self._called)
        stack.callback(first.remove)
        self._forget = first.remove
        stack.callback(register_optimizer_step_pre_hook(self._step_begins).remove)
        stack.callback(register_optimizer_step_post_hook(self._step_ends).remove)

    def turn(self) -> None:
        """Take note that an operator stands in another run of autograd than the last."""
        self.task = graph_task()
        self._say()

    def _called(self, *_: Any) -> None:
        self._forget()
        self._trains = True
        self._say()

    def _step_begins(self, *_: Any) -> None:
        self._stepping += 1
        self._surroundings.begin("optimizer")
        self._say()

    def _step_ends(self, *_: Any) -> None:
        self._stepping -= 1
        self._surroundings.end()
        if not self._stepping:
            self._steps += 1
            self._trains = True
        self._say()

    def _say(self) -> None:
        phase = self._surroundings.phase()
        self._tell(self._steps, phase if self._trains or phase != "forward" else "")
