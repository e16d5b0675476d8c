"""Where a rank's code stands: its phase, the module that runs, the user's file and line.

All three are asked for at each allocation and collective, so none may cost more than about a
microsecond. No stack is taken: one frame is looked for, from the inside out.

Phases are detected, not wrapped, since pipelines interleave them: backward is where autograd runs,
recomputation included; optimizer is between the hooks of `Optimizer.step`; forward is the rest.
Whichever began last counts: a closure's backward inside a step is backward, a step inside a
gradient hook is optimizer.

In backward no module runs. A module is found by the sequence numbers that autograd gave its nodes
while the module's forward ran.

Limits: a step of an optimizer that is no `torch.optim.Optimizer` is forward unless it is watched,
and so is what an engine does around backward and step unless its framework is known. A torch step
that raises counts until the next step or region begins. Modules of backward are known for graphs
that the main thread built. A module's forward that is called directly, not through `module(...)`,
has no name; nor has one inside a compiled graph: Dynamo would trace the hooks into it. What a
module's own forward hooks do is its parent's, but for the calls that they issue in forward.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import warnings
import weakref
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_compiling
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from ._torch_private import (
    ACCUMULATES,
    MODULE_CALL,
    current_node,
    forward_sequence_number,
    graph_task,
    sequence_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from torch import nn

Line = tuple[str, int]  # a file and a line in it

_MOST_MARKS: Final = 200_000

# Frames of these are nobody's training code. Site packages lie inside the standard library's
# folder, and are somebody's: a model's layers are.
_OURS: Final = str(Path(__file__).parents[1]) + os.sep
_TORCH: Final = str(Path(torch.__file__).parent) + os.sep
_STDLIB: Final = sysconfig.get_path("stdlib") + os.sep
_SITE: Final = tuple(
    {path + os.sep for name in ("purelib", "platlib") if (path := sysconfig.get_path(name))}
)
_RUNNERS: Final = tuple(
    site + name + os.sep for site in _SITE for name in ("_pytest", "pluggy", "pytest")
)
# What only passes calls on to torch.distributed: the line before it says who communicates.
_PLUMBING: Final = tuple(
    site + name.replace("/", os.sep)
    for site in _SITE
    for name in ("typing_extensions.py", "deepspeed/comm/", "deepspeed/utils/nvtx.py")
)


class Label:
    """A module's name, shared by all that was allocated in it: it may be learnt later."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        """Begin with the class's name."""
        self.name = name


NOWHERE: Final = Label("")


class _Stacks(threading.local):
    """The modules that run in a thread, the phases begun in it, and the autograd runs they are in.

    The phases are an optimizer's steps, and what a framework's engine does around autograd.
    """

    def __init__(self) -> None:
        self.modules: list[Label] = []
        self.left: Label | None = None  # the last that ended, if it has forward hooks of its own
        self.begun: list[tuple[int, str]] = []


class Surroundings:
    """Follow phases and modules between `start` and `stop`."""

    def __init__(self) -> None:
        """Follow nothing yet."""
        self._stacks = _Stacks()
        self._labels: weakref.WeakKeyDictionary[nn.Module, Label] = weakref.WeakKeyDictionary()
        self._owner_of: dict[int, Label] = {}  # the id of a parameter, to its module
        # Autograd's sequence number when a module's forward began or ended → what ran from there.
        self._marks: list[int] = []
        self._marked: list[Label] = []
        self._inner: dict[str, bool] = {}
        self._hooks: list[Any] = []
        # Told of the arguments of each outermost module that forward calls.
        self.on_inputs: Callable[[tuple[object, ...]], None] | None = None
        self._main = threading.main_thread().ident

    def start(self) -> None:
        """Install the hooks."""
        hush_compiler()
        self._hooks = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
            register_module_forward_pre_hook(self._module_begins),
            register_module_forward_hook(self._module_ends, always_call=True),
        ]

    def stop(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def settle(self) -> None:
        """Forget steps that an exception ended; called where no step can be running."""
        self._stacks.begun.clear()
        hush_compiler()

    def learn(self, roots: Iterable[nn.Module]) -> None:
        """Take the names of the modules and parameters below these."""
        for root in roots:
            for name, module in root.named_modules():
                self._label(module).name = name or type(module).__name__
                for param in module.parameters(recurse=False):
                    self._owner_of[id(param)] = self._label(module)

    def phase(self) -> str:
        """Return "forward", "backward" or "optimizer"."""
        task = graph_task()
        begun = self._stacks.begun
        if begun and begun[-1][0] == task:
            return begun[-1][1]
        return "forward" if task == -1 else "backward"

    def begin(self, phase: str) -> None:
        """Begin a phase, whoever runs in it; autograd inside it is backward all the same."""
        self._stacks.begun.append((graph_task(), phase))

    def end(self) -> None:
        """End the phase that was begun last."""
        if self._stacks.begun:
            self._stacks.begun.pop()

    def module(self) -> Label:
        """Return what runs: the innermost module, in backward the one whose node runs."""
        modules = self._stacks.modules
        if modules:
            return modules[-1]
        node = current_node()
        return NOWHERE if node is None else self._module_of(node)

    def caller(self) -> Label:
        """Return what issues a call: as `module`, and a module whose own forward hooks run.

        They run after ours (tensor parallelism redistributes in them), so it has ended already, but
        its frame is still there. The frame is not asked whose it is: that would copy its variables,
        and so keep tensors.
        """
        left = self._stacks.left
        if left is not None and _modules_called() > len(self._stacks.modules):
            return left
        return self.module()

    def line(self, depth: int = 1) -> Line | None:
        """Return the innermost frame that is neither torch's, pytest's, Python's nor ours."""
        frame: FrameType | None = sys._getframe(depth)
        inner = self._inner
        while frame is not None:
            filename = frame.f_code.co_filename
            is_inner = inner.get(filename)
            if is_inner is None:
                is_inner = inner[filename] = _is_inner(filename)
            if not is_inner:
                return filename, frame.f_lineno
            frame = frame.f_back
        return None

    def _module_of(self, node: Any) -> Label:
        number = sequence_number(node)
        if number == ACCUMULATES:
            return self._owner_of.get(id(getattr(node, "variable", None)), NOWHERE)
        at = bisect_right(self._marks, number) - 1
        return self._marked[at] if at >= 0 else NOWHERE

    def _label(self, module: nn.Module) -> Label:
        label = self._labels.get(module)
        if label is None:
            label = self._labels[module] = Label(type(module).__name__)
        return label

    def _module_begins(self, module: nn.Module, args: tuple[object, ...]) -> None:
        if is_compiling():  # dynamo traces global hooks, and can't trace what follows
            return
        label = self._label(module)
        modules = self._stacks.modules
        # What a checkpoint calls again in backward is given what was saved.
        if not modules and self.on_inputs is not None and graph_task() == -1:
            self.on_inputs(args)
        modules.append(label)
        self._stacks.left = None
        self._mark(label)

    def _module_ends(self, module: nn.Module, _: object, __: object) -> None:
        if is_compiling():
            return
        modules = self._stacks.modules
        # One that began before we started, or in a compiled graph, ends too.
        if modules and modules[-1] is self._labels.get(module):
            label = modules.pop()
            self._stacks.left = label if module._forward_hooks else None
        self._mark(modules[-1] if modules else NOWHERE)

    def _mark(self, label: Label) -> None:
        if threading.get_ident() != self._main:
            return  # sequence numbers are counted per thread
        number = forward_sequence_number()
        if self._marks and self._marks[-1] == number:
            self._marked[-1] = label
            return
        self._marks.append(number)
        self._marked.append(label)
        if len(self._marks) > _MOST_MARKS:
            del self._marks[: _MOST_MARKS // 2]
            del self._marked[: _MOST_MARKS // 2]

    def _step_begins(self, *_: object) -> None:
        if not is_compiling():
            self.begin("optimizer")

    def _step_ends(self, *_: object) -> None:
        if not is_compiling():
            self.end()


def _modules_called() -> int:
    frame: FrameType | None = sys._getframe(1)
    calls = 0
    while frame is not None:
        calls += frame.f_code is MODULE_CALL
        frame = frame.f_back
    return calls


def hush_compiler() -> None:
    """Ignore torch.compile's warning of global hooks, which would be the user's about ours.

    pytest ends the filter with the phase of a test.
    """
    warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there are")


def text_of(line: Line | None) -> str:
    """Return "train.py:12", the file as seen from the current directory."""
    if line is None:
        return ""
    filename, number = line
    return f"{_seen_from(os.getcwd(), filename)}:{number}"


@cache
def _seen_from(directory: str, filename: str) -> str:
    try:
        path = os.path.relpath(filename, directory)
    except ValueError:  # another drive
        path = filename
    return filename if path.startswith("..") else path


def _is_inner(filename: str) -> bool:
    if filename.startswith(("<", _OURS, _TORCH, *_RUNNERS, *_PLUMBING)):
        return True
    return filename.startswith(_STDLIB) and not filename.startswith(_SITE)
