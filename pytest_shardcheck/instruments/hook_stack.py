"""Keep a pair of saved-tensor hooks running whatever hooks others push, pop or forbid.

Of nested hooks only the innermost runs. So while ours are installed, every pair that is pushed is
composed with ours, and where hooks are forbidden (`torch.func.grad`) ours stand aside until they
are allowed again. Hooks are per thread: ours are pushed in this thread and in those that start.

Limits: threads that were running before are not entered. Hooks that torch.compile inlines (pairs
of `GraphModule`s) are left alone.
"""

from __future__ import annotations

import os
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Protocol

from torch.fx import GraphModule

from . import threads
from ._torch_private import (
    SAVED_TENSOR_HOOKS,
    hooks_are_enabled,
    pop_hooks,
    push_hooks,
    top_hooks,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    Pack = Callable[[Tensor], Any]
    Unpack = Callable[[Any], Tensor]

_PUSH: Final = "_push_saved_tensors_default_hooks"
_POP: Final = "_pop_saved_tensors_default_hooks"
_DISABLE: Final = "_saved_tensors_hooks_disable"
_ENABLE: Final = "_saved_tensors_hooks_enable"

INLINED: Final = "hooks that torch.compile inlines ran instead of ours"
FORBIDDEN: Final = "saved-tensor hooks were forbidden"


class Pair(Protocol):
    """A pair of hooks of ours. Bound methods of it are pushed, and lead back to it."""

    def pack(self, tensor: Tensor) -> object:
        """Return what the graph holds instead of the tensor."""

    def unpack(self, packed: Any) -> Tensor:
        """Return the tensor."""


class Maker(Protocol):
    """Who makes our pairs."""

    plain: Pair  # what runs where nobody else has a pair

    def composed(self, pack: Pack, unpack: Unpack) -> Pair:
        """Return a pair that runs somebody else's and ours."""

    def hidden(self, reason: str) -> None:
        """Take note of what hides tensors from our hooks."""


class _Place(threading.local):
    """This thread: our pair, under all that were pushed later, and whether it stands aside."""

    base: Pair | None = None
    aside = False


class HookStack:
    """Our pair in each thread's stack of hooks."""

    def __init__(self, maker: Maker) -> None:
        """Push nothing yet."""
        self.installed = False
        self._maker = maker
        self._place = _Place()
        self._ours = {
            _PUSH: self._push,
            _POP: self._pop,
            _DISABLE: self._disable,
            _ENABLE: self._enable,
        }
        self._theirs: dict[str, Callable[..., None]] = {}
        self._threads = 0
        self._lock = threading.Lock()
        _stacks.add(self)

    def install(self) -> None:
        """Push our pair in this thread, and in each that starts from now on."""
        self.installed = True
        self._replace_functions()
        threads.enter_in_new_threads(self._inside)
        self._enter()

    def uninstall(self) -> None:
        """Remove our pair from this thread; others keep theirs, idle, until they end."""
        self.installed = False
        threads.leave_new_threads_alone(self._inside)
        self._leave()
        self._restore_functions()

    def switch_off(self) -> None:
        """Be gone from a forked child, where only the forking thread lives."""
        self._lock = threading.Lock()
        self._threads = 0
        if self.installed:
            self.uninstall()

    @contextmanager
    def _inside(self) -> Iterator[None]:
        with self._lock:
            self._threads += 1
        self._enter()
        try:
            yield
        finally:
            self._leave()
            with self._lock:
                self._threads -= 1
            self._restore_functions()

    def _replace_functions(self) -> None:
        if not self._theirs:
            self._theirs = {name: getattr(SAVED_TENSOR_HOOKS, name) for name in self._ours}
            for name, function in self._ours.items():
                setattr(SAVED_TENSOR_HOOKS, name, function)

    def _restore_functions(self) -> None:
        """Give torch's functions back, once no thread has an idle pair for them to work around."""
        with self._lock:
            if self.installed or self._threads or not self._theirs:
                return
            for name, function in self._ours.items():
                if getattr(SAVED_TENSOR_HOOKS, name) is function:
                    setattr(SAVED_TENSOR_HOOKS, name, self._theirs[name])
            self._theirs = {}

    def _call(self, name: str, *args: object) -> None:
        # torch.compile may have kept ours in a graph that runs after the last region.
        self._theirs.get(name, getattr(SAVED_TENSOR_HOOKS, name))(*args)

    def _enter(self) -> None:
        """Push our pair above what is there."""
        place, top = self._place, top_hooks()
        place.base, place.aside = None, not hooks_are_enabled()
        if place.aside:
            self._maker.hidden(FORBIDDEN)
        elif top is not None and isinstance(top[0], GraphModule):
            self._maker.hidden(INLINED)
        else:
            place.base = self._maker.plain if top is None else self._maker.composed(*top)
            push_hooks(place.base.pack, place.base.unpack)

    def _leave(self) -> None:
        """Take our pair out from under those that were pushed later."""
        place = self._place
        base, place.base, place.aside = place.base, None, False
        above = []
        while base is not None and (top := top_hooks()) is not None:
            pop_hooks()
            if _pair(top) is base:
                break
            above.append(top)
        for pair in reversed(above):
            push_hooks(*pair)

    def _push(self, pack: Pack, unpack: Unpack) -> None:
        if self.installed and not isinstance(pack, GraphModule):
            pair = self._maker.composed(pack, unpack)
            pack, unpack = pair.pack, pair.unpack
        self._call(_PUSH, pack, unpack)

    def _pop(self) -> None:
        base = self._place.base
        if base is None or _pair(top_hooks()) is not base:
            self._call(_POP)
            return
        # A pair from before ours ends: it lies under ours.
        pop_hooks()
        try:
            self._call(_POP)
        finally:
            self._enter()

    def _disable(self, message: str, fail_if_non_empty: bool = True) -> None:
        """Let hooks be forbidden where none but ours are there; others fail as without us."""
        place = self._place
        alone = place.base is self._maker.plain and _pair(top_hooks()) is place.base
        if fail_if_non_empty and alone:
            pop_hooks()
            place.base, place.aside = None, True
            if self.installed:
                self._maker.hidden(f"{FORBIDDEN}: {message}")
        self._call(_DISABLE, message, fail_if_non_empty)

    def _enable(self) -> None:
        self._call(_ENABLE)
        if self._place.aside:
            self._place.aside = False
            if self.installed:
                self._enter()


def _pair(top: tuple[Any, Any] | None) -> object:
    """Return the object of ours whose methods these hooks are."""
    return None if top is None else getattr(top[0], "__self__", None)


_stacks: weakref.WeakSet[HookStack] = weakref.WeakSet()


def _switch_off() -> None:
    for stack in _stacks:
        stack.switch_off()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_switch_off)
