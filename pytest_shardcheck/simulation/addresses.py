"""Addresses of tensors without data: torch compares them to learn what shares a storage.

FSDP1 finds out so which parameters it has to free; where all addresses were 0, it would keep them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .patches import replace


def install(stack: ExitStack) -> None:
    """Give each storage an address of its own, and none to one that is empty."""
    replace(stack, FakeTensor, "data_ptr", lambda _: _of_tensor)
    replace(stack, torch.UntypedStorage, "data_ptr", _of_storage)


def _of_tensor(tensor: Tensor) -> int:
    start = _address(tensor.untyped_storage())
    return start + int(tensor.storage_offset()) * tensor.element_size() if start else 0


def _of_storage(data_ptr: Callable[[torch.UntypedStorage], int]) -> Callable[..., int]:
    def address(storage: torch.UntypedStorage) -> int:
        return _address(storage) if storage.device.type == "meta" else data_ptr(storage)

    return address


def _address(storage: torch.UntypedStorage) -> int:
    return int(storage._cdata) if storage.nbytes() else 0
