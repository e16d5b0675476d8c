"""Run the threads that a rank starts inside a context: dispatch modes and hooks are per thread.

Limits: threads that were started before, or by C++ (autograd's on CUDA, a backend's), are not.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_factories: list[Callable[[], AbstractContextManager[object]]] = []
_start = threading.Thread.start


def enter_in_new_threads(factory: Callable[[], AbstractContextManager[object]]) -> None:
    """Enter what `factory` returns in each thread that starts from now on, around its `run`."""
    _factories.append(factory)
    if len(_factories) == 1:
        threading.Thread.start = _start_inside  # type: ignore[assignment, method-assign]


def leave_new_threads_alone(factory: Callable[[], AbstractContextManager[object]]) -> None:
    """Undo `enter_in_new_threads`; threads that run keep what they entered."""
    _factories.remove(factory)
    if not _factories:
        threading.Thread.start = _start  # type: ignore[method-assign]


def _start_inside(thread: threading.Thread) -> None:
    run: Any = thread.run
    for factory in _factories:
        run = _inside(factory, run)
    thread.run = run  # type: ignore[method-assign]
    _start(thread)


def _inside(
    factory: Callable[[], AbstractContextManager[object]], run: Callable[[], None]
) -> Callable[[], None]:
    def inside() -> None:
        with factory():
            run()

    return inside
