"""The pairs of saved-tensor hooks that are pushed: ours alone, and ours around somebody else's.

What a graph holds instead of a tensor is a handle of ours. It dies with the graph's hold, in any
thread; nothing else refers to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from ._torch_private import PLAIN, dispatch_modes, function_modes, is_checkpoint, without_dispatch
from .tensors import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .hook_stack import Pack, Unpack


class Keeper(Protocol):
    """Who is told what the hooks see."""

    def look(self) -> bool:
        """Look at the phase, since autograd runs a hook; tell whether anybody wants to know."""

    def keep(self, tensor: Tensor, alive: object, original: Tensor | None = None) -> None:
        """Take note of a tensor that is held as long as `alive` is."""

    def keep_nothing(self) -> None:
        """Take note of a hook that kept no tensor."""

    def hidden(self, reason: str) -> None:
        """Take note of a tensor that is kept where it can't be seen."""


class _Handle:
    """A saved tensor, and its version when it was packed."""

    __slots__ = ("__weakref__", "kept", "version")

    def __init__(self, kept: Tensor, version: int) -> None:
        self.kept = kept
        self.version = version


class _Inner:
    """What somebody else's pack hook returned."""

    __slots__ = ("__weakref__", "packed")

    def __init__(self, packed: object) -> None:
        self.packed = packed


class PlainHooks:
    """Our hooks alone: the graph holds what it would hold without them."""

    __slots__ = ("_keeper",)

    def __init__(self, keeper: Keeper) -> None:
        """Tell the keeper."""
        self._keeper = keeper

    def pack(self, tensor: Tensor) -> _Handle:
        """Keep the tensor."""
        if function_modes() or type(tensor) not in PLAIN:
            with torch._C.DisableTorchFunction():
                return self._pack(tensor)
        return self._pack(tensor)

    def _pack(self, tensor: Tensor) -> _Handle:
        # A node that holds its own output would never die.
        kept = tensor if tensor.is_leaf else alias(tensor)
        handle = _Handle(kept, tensor._version)
        keeper = self._keeper
        if keeper.look():
            keeper.keep(kept, handle, tensor)
        return handle

    def unpack(self, handle: _Handle) -> Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: it was modified in place, for which torch doesn't look under hooks.
        """
        self._keeper.look()
        kept = handle.kept
        if kept._version != handle.version:
            raise RuntimeError(_modified(kept, handle.version))
        return kept


class ComposedHooks:
    """Somebody else's hooks; the graph holds what they return."""

    __slots__ = ("_keeper", "_pack", "_unpack")

    def __init__(self, keeper: Keeper, pack: Pack, unpack: Unpack) -> None:
        """Tell the keeper what these hooks keep."""
        self._keeper = keeper
        self._pack = pack
        self._unpack = unpack

    def pack(self, tensor: Tensor) -> object:
        """Keep what the other hook keeps.

        A tensor that it made is followed for itself: its owner may keep it longer than the graph.
        """
        packed = self._pack(tensor)
        keeper = self._keeper
        if not keeper.look():
            return packed
        inner = _Inner(packed)
        kept = list(_kept(packed))
        for item in kept:
            keeper.keep(item, inner if item is tensor else item)
        if not kept:
            keeper.keep_nothing()
            if not is_checkpoint(self._pack):
                keeper.hidden(f"{_name(self._pack)} returned no tensor, but {_kind(packed)}")
        return inner

    def unpack(self, packed: Any) -> Tensor:
        """Return what the other hook returns."""
        self._keeper.look()
        return self._unpack(packed.packed if type(packed) is _Inner else packed)


class RecomputationHooks(ComposedHooks):
    """Those of a non-reentrant checkpoint's recomputation.

    It keeps each tensor for itself, outside the recomputed graph, and stops by raising from the
    hook once it has the last. So it gets an alias that nobody else has, to be followed.
    """

    __slots__ = ()

    def pack(self, tensor: Tensor) -> object:
        """Keep the recomputed tensor as long as the checkpoint does."""
        keeper = self._keeper
        if not keeper.look():
            return self._pack(tensor)
        kept = alias(tensor)
        keeper.keep(kept, kept, tensor)
        return self._pack(kept)


def alias(tensor: Tensor) -> Tensor:
    """Return a tensor of its own over the same storage, with the same version, without a graph."""
    if dispatch_modes() and type(tensor) in PLAIN:
        with without_dispatch():  # it is no operation of the user's
            return tensor.detach()
    return tensor.detach()


def _kept(packed: object) -> Iterator[Tensor]:
    if type(packed) is _Handle:  # another instance's, around which these are composed
        yield packed.kept
    else:
        yield from tensors_in(packed.packed if type(packed) is _Inner else packed)


def _modified(tensor: Tensor, version: int) -> str:
    return (
        "one of the variables needed for gradient computation has been modified by an inplace "
        f"operation: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
        f"expected version {version} instead. Hint: enable anomaly detection to find the operation "
        "that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
    )


def _name(hook: object) -> str:
    return f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', repr(hook))}"


def _kind(packed: object) -> str:
    return f"{type(packed).__name__}: what it keeps elsewhere does not count"
