"""Tell the phases of objects whose methods are one: engines, and optimizers that are not torch's.

The method is replaced on the object, not on its class, and only while a region is open.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from torch.compiler import is_compiling
from torch.optim import Optimizer

from .watched import is_optimizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pytest_shardcheck.vocabulary.frameworks import Frameworks

_NOT_ITS_OWN = object()


class Brackets:
    """Call `begins(phase)` and `ends(phase)` around methods that are a phase."""

    def __init__(
        self,
        frameworks: Frameworks,
        begins: Callable[[str], None],
        ends: Callable[[str], None],
    ) -> None:
        """Put none yet."""
        self._frameworks = frameworks
        self._begins, self._ends = begins, ends
        self._replaced: dict[tuple[int, str], tuple[Any, Any]] = {}

    def put(self, things: Iterable[Any]) -> None:
        """Put brackets around the methods of these, where there are none yet."""
        for thing in things:
            for name, phase in self._phases(thing).items():
                if (id(thing), name) not in self._replaced:
                    self._replaced[id(thing), name] = (thing, vars(thing).get(name, _NOT_ITS_OWN))
                    object.__setattr__(thing, name, self._bracketed(getattr(thing, name), phase))

    def remove(self) -> None:
        """Give all objects their methods back."""
        while self._replaced:
            (_, name), (thing, own) = self._replaced.popitem()
            if own is _NOT_ITS_OWN:
                object.__delattr__(thing, name)
            else:
                object.__setattr__(thing, name, own)

    def _phases(self, thing: Any) -> Mapping[str, str]:
        if not hasattr(thing, "__dict__"):
            return {}  # with slots: nothing can be replaced
        own = is_optimizer(thing) and not isinstance(thing, Optimizer)
        step = {"step": "optimizer"} if own and callable(getattr(thing, "step", None)) else {}
        return {**step, **self._frameworks.phases(thing)}

    def _bracketed(self, method: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @wraps(method)
        def bracketed(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return method(*args, **kwargs)
            self._begins(phase)
            try:
                return method(*args, **kwargs)
            finally:
                self._ends(phase)

        return bracketed
