"""Find the tensors in nested values, and the plain tensors in a tensor."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.parameter import is_lazy

from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users

from ._torch_private import PLAIN, inner_tensors, sparse_coo_tensors

__tracebackhide__ = hide_from_users

_PLAINEST = frozenset({*PLAIN, FakeTensor})
SEQUENCES = (list, tuple, set, frozenset, deque)

_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def tensors_in(value: object) -> Iterator[Tensor]:
    """Yield the tensors in nested mappings (their values), sequences and dataclasses."""
    yield from _walk(value, set())


def _walk(value: object, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
        return
    children = _children(value)
    if not children or id(value) in seen:
        return
    seen.add(id(value))
    for child in children:
        yield from _walk(child, seen)


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, SEQUENCES):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # A field may never have been set (slots, init=False).
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def plain_tensors(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors with a storage that this one consists of: a DTensor's local shard, the
    inner tensors of other wrappers, indices and values of sparse ones; nothing for meta tensors
    and parameters of lazy modules that have no shape yet.

    Raises:
        UsageError: the tensor has no storage that can be read (mkldnn and other opaque layouts).
    """
    is_meta = tensor.device.type == "meta"  # asked so, it is no operator
    if type(tensor) in _PLAINEST and tensor.layout == torch.strided and not is_meta:
        yield tensor  # as nearly all are
        return
    if is_meta or is_lazy(tensor):
        return
    parts = _parts(tensor)
    if parts is None:
        yield tensor
        return
    for part in parts:
        yield from plain_tensors(part)


def readable_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the same, and nothing where a storage can't be read: an opaque layout, or a wrapper of
    torch.func's transforms (what it wraps is seen). For who only looks on: code that works without
    us must work with us.
    """
    try:
        plain = list(plain_tensors(tensor))
        for part in plain:
            part.untyped_storage()
    except (UsageError, NotImplementedError, RuntimeError):
        return []
    return plain


def _parts(tensor: Tensor) -> list[Tensor] | None:
    parts = inner_tensors(tensor)
    if parts:
        return parts
    if parts is None and tensor.layout == torch.strided:
        return None
    if tensor.layout == torch.sparse_coo:
        return sparse_coo_tensors(tensor)
    if tensor.layout in _COMPRESSED:
        return [getattr(tensor, name)() for name in _COMPRESSED[tensor.layout]]
    # Never a silent zero.
    raise UsageError(
        f"can't measure a {type(tensor).__name__} of layout {tensor.layout}: its storage can't be "
        "read; expected a strided or sparse tensor, or a subclass with __tensor_flatten__. "
        "Watch the tensors that it is made of instead"
    )
