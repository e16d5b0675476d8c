"""Replace attributes of torch for as long as a world is simulated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily


def replace(stack: ExitStack, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace ``owner.name`` by ``make(original)`` until the stack unwinds.

    Raises:
        AttributeError: This version of torch has no such attribute.
    """
    inherited = name not in vars(owner)
    kept = vars(owner).get(name)  # the descriptor itself: of a static method too
    original = getattr(owner, name)

    def undo() -> None:
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, kept)

    setattr(owner, name, make(original))
    stack.callback(undo)


def on_real_tensors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs on real tensors: small ones, whose values torch itself reads."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return function(*args, **kwargs)

    return run
