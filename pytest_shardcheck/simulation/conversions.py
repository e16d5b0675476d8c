"""`module.to(...)` converts parameters as it does in the real world: each keeps its identity.

torch swaps the tensors where they are fake, which it refuses where anything refers to one weakly.
Between the meta device and another (``to_empty``) data can't be set: what lies behind the two
tensors is swapped, without that refusal: nothing here finds a tensor's data by a weak reference.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from .patches import replace


def install(stack: ExitStack) -> None:
    """Have modules set a parameter's data."""
    replace(stack, torch.utils, "swap_tensors", _setting_data)


def _setting_data(swap: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def swap_tensors(one: Any, other: Any) -> None:
        if isinstance(one, FakeTensor) and isinstance(other, FakeTensor):
            if torch._has_compatible_shallow_copy_type(one, other):
                one.data = other.data
                one.fake_device = other.fake_device
            else:
                one.__dict__, other.__dict__ = other.__dict__, one.__dict__
                torch._C._swap_tensor_impl(one, other)
        else:
            swap(one, other)

    return swap_tensors
