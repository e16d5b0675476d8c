"""Which storages are those of parameters and buffers, whether they are watched or not.

Every module that runs is looked at when its forward begins; its buffers each time, since a
forward may replace them. What runs in no module can be named with `learn`.

Limits: the parameters and buffers of a module whose forward is called directly, not through
`module(...)`, are known only where they are named, or are `nn.Parameter`s.
"""

from __future__ import annotations

import weakref
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from ._torch_private import storage_key
from .surroundings import hush_compiler
from .tensors import readable_tensors

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.utils.hooks import RemovableHandle


class KnownState:
    """The storages of parameters and buffers that are alive."""

    def __init__(self) -> None:
        """Know nothing yet."""
        # A freed storage's key comes back for another: a key counts while its tensor has it.
        # (No WeakSet: it compares its members, and tensors compare element by element.)
        self._tensors: dict[int, list[weakref.ref[Tensor]]] = {}
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._hook: RemovableHandle | None = None
        self._looking = False

    def install(self) -> None:
        """Install the hook, before `start` would.

        torch.compile guards on global hooks: one that came with each region would make it compile
        everything once more in each, and give up, to run eagerly, at the eighth.
        """
        if self._hook is None:
            self._hook = register_module_forward_pre_hook(self._module_begins)

    def remove(self) -> None:
        """Remove the hook."""
        self._looking = False
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def start(self) -> None:
        """Look at each module that runs."""
        self.install()
        self._looking = True
        hush_compiler()

    def stop(self) -> None:
        """Look at no more modules."""
        self._looking = False

    def learn(self, tensors: Iterable[Tensor]) -> None:
        """Take these for parameters and buffers."""
        for tensor in tensors:
            for part in readable_tensors(tensor):  # others are measured nowhere
                refs = self._tensors.setdefault(storage_key(part.untyped_storage()), [])
                if not any(ref() is part for ref in refs):
                    refs.append(weakref.ref(part))

    def owns(self, key: int) -> bool:
        """Tell whether the living storage of this key is a parameter's or a buffer's."""
        refs = self._tensors.get(key)
        if refs is None:
            return False
        tensors = [tensor for ref in refs if (tensor := ref()) is not None]
        if any(storage_key(tensor.untyped_storage()) == key for tensor in tensors):
            return True
        del self._tensors[key]
        return False

    def _module_begins(self, module: nn.Module, _: object) -> None:
        if torch.compiler.is_compiling():
            return  # a constant to the compiler: nothing of this is in its graph
        if not self._looking:
            return
        if module in self._seen:
            if module._buffers:
                self.learn(buffer for buffer in module._buffers.values() if buffer is not None)
            return
        # All below it at once: a compiled module runs its children without hooks.
        for inner in module.modules():
            if inner not in self._seen:
                self._seen.add(inner)
                own = chain(inner.parameters(recurse=False), inner.buffers(recurse=False))
                self.learn(own)
