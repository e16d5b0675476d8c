"""What an operator of a process group moves, from its arguments. Sizes are bytes of this rank.

`payload` follows the convention of nccl-tests, `wire` its factors for the bus bandwidth
(nccl-tests, doc/PERFORMANCE.md; src/gather.cu and src/scatter.cu for those two): S is the tensor of
an all_reduce, broadcast, reduce, send or recv; the output of an all_gather; the input of a
reduce_scatter or all_to_all; all parts of a gather or scatter, on every rank.

Limits: the parts of a gather, on ranks that see only their own, are taken for equal. Which
reduction was asked for is not looked at. A sparse tensor counts what this rank holds of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from pytest_shardcheck.vocabulary.call_log import ANYONE, Descriptor

from ._torch_private import sparse_coo_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .groups import Group


def describe(operator: str, group: Group, args: Sequence[Any]) -> Descriptor:
    """Return what a call of a known operator moves."""
    operation, fields_of = _OPERATORS[operator]
    return Descriptor(operation=operation, **{"stream": group.stream, **fields_of(group, *args)})


def key_of(operator: str, group: Group, args: Sequence[Any]) -> object:
    """Return what two calls with the same descriptor share; None where only the values tell."""
    parts = tuple(map(_key, args))
    return None if _UNKNOWABLE in parts else (operator, id(group), parts)


def wire_bytes(descriptor: Descriptor, size: int) -> int:
    """Return what each rank of a ring of `size` puts on the wire, rounded up to a whole byte.

    all_reduce 2(n-1)/n S; all_gather, reduce_scatter, gather, scatter (n-1)/n S; all_to_all what
    leaves this rank; broadcast, reduce, send, recv S. A group of one sends nothing.
    """
    payload = descriptor.bytes
    if size < 2:
        return 0
    if descriptor.operation == "all_to_all":
        return payload - descriptor.own_bytes
    if descriptor.operation in ("broadcast", "reduce", "send", "recv"):
        return payload
    rounds = 2 if descriptor.operation == "all_reduce" else 1
    return -(-rounds * (size - 1) * payload // size)


def bytes_of(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    if tensor.layout == torch.sparse_coo:
        return sum(map(bytes_of, sparse_coo_tensors(tensor)))
    return tensor.numel() * tensor.element_size()


_UNKNOWABLE: Final = "sparse"


def _key(argument: Any) -> object:
    kind = type(argument)
    if kind is list:
        # One tensor and a list of one have the same key: an operator takes either, never both.
        keys = _key(argument[0]) if len(argument) == 1 else tuple(map(_key, argument))
        return _UNKNOWABLE if type(keys) is tuple and _UNKNOWABLE in keys else keys
    if kind is int:
        return argument
    if argument.layout is not torch.strided:
        return _UNKNOWABLE
    return argument.dtype, argument.shape


def _moved(tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Return the fields that say which tensors' sizes are the payload."""
    dtypes = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return {
        "dtype": ", ".join(dtypes),
        "shapes": tuple(tuple(map(int, tensor.shape)) for tensor in tensors),
        "bytes": sum(map(bytes_of, tensors)),
    }


def _numels(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    return tuple(int(tensor.numel()) for tensor in tensors)


def _list_of(argument: Any) -> list[Tensor]:
    """Return a tensor, a list of them or a list of lists as one list."""
    if isinstance(argument, Tensor):
        return [argument]
    return [tensor for item in argument for tensor in _list_of(item)]


def _same(_: Group, tensors: list[Tensor], *__: Any) -> dict[str, Any]:
    return {**_moved(tensors), "parts": _numels(tensors)}


def _broadcast(group: Group, tensors: list[Tensor], _: Any, root: int, *__: Any) -> dict[str, Any]:
    return {**_same(group, tensors), "root": group.global_rank(root)}


def _reduce(
    group: Group, tensors: list[Tensor], _: Any, __: Any, root: int, *___: Any
) -> dict[str, Any]:
    return {**_same(group, tensors), "root": group.global_rank(root)}


def _all_gather(_: Group, outputs: Any, inputs: Any, *__: Any) -> dict[str, Any]:
    whole = _list_of(outputs)
    return {**_moved(whole), "parts": _uneven(whole) or _numels(_list_of(inputs))}


def _reduce_scatter(_: Group, outputs: Any, inputs: Any, *__: Any) -> dict[str, Any]:
    whole = _list_of(inputs)
    return {**_moved(whole), "parts": _uneven(whole) or _numels(_list_of(outputs))}


def _gather(
    group: Group, outputs: Any, inputs: list[Tensor], _: Any, root: int, *__: Any
) -> dict[str, Any]:
    # Only the root has the outputs.
    whole = _list_of(outputs) or inputs * group.size
    return {**_moved(whole), "parts": _numels(inputs), "root": group.global_rank(root)}


def _scatter(
    group: Group, outputs: list[Tensor], inputs: Any, _: Any, root: int, *__: Any
) -> dict[str, Any]:
    whole = _list_of(inputs) or outputs * group.size
    return {**_moved(whole), "parts": _numels(outputs), "root": group.global_rank(root)}


def _all_to_all(
    group: Group, outputs: list[Tensor], inputs: list[Tensor], *_: Any
) -> dict[str, Any]:
    return {
        **_moved(inputs),
        "parts": _numels(inputs),
        "received": _numels(outputs),
        "own_bytes": bytes_of(inputs[group.rank]),
    }


def _all_to_all_single(
    group: Group, output: Tensor, source: Tensor, _: Any, into: list[int], of: list[int], *__: Any
) -> dict[str, Any]:
    parts = _split(source, of, group.size)
    return {
        **_moved([source]),
        "parts": parts,
        "received": _split(output, into, group.size),
        "own_bytes": parts[group.rank] * source.element_size(),
    }


def _send(
    group: Group, tensors: list[Tensor], _: Any, peer: int, tag: int, *__: Any
) -> dict[str, Any]:
    receiver = group.global_rank(peer)
    return {**_same(group, tensors), "stream": group.one_way(group.own_rank, receiver, tag)}


def _recv(
    group: Group, tensors: list[Tensor], _: Any, peer: int, tag: int, *__: Any
) -> dict[str, Any]:
    sender = group.global_rank(peer)
    return {**_same(group, tensors), "stream": group.one_way(sender, group.own_rank, tag)}


def _recv_any(group: Group, tensors: list[Tensor], _: Any, tag: int, *__: Any) -> dict[str, Any]:
    return {**_same(group, tensors), "stream": group.one_way(ANYONE, group.own_rank, tag)}


def _barrier(*_: Any) -> dict[str, Any]:
    return {}  # what it carries is torch's own


def _uneven(parts: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the sizes of parts that differ, one for each rank; nothing where they are equal."""
    sizes = _numels(parts)
    return sizes if len(set(sizes)) > 1 else ()


def _split(tensor: Tensor, splits: Sequence[int], size: int) -> tuple[int, ...]:
    """Return the elements of each rank's part: rows, or equal parts where no split is given."""
    numel = int(tensor.numel())
    if not splits:
        return (numel // size,) * size
    rows = int(tensor.shape[0])
    return tuple(numel // rows * rows_of_rank if rows else 0 for rows_of_rank in splits)


_OPERATORS: Final[dict[str, tuple[str, Callable[..., dict[str, Any]]]]] = {
    "_allgather_base_": ("all_gather", _all_gather),
    "_reduce_scatter_base_": ("reduce_scatter", _reduce_scatter),
    "allgather_": ("all_gather", _all_gather),
    "allgather_coalesced_": ("all_gather", _all_gather),
    "allgather_into_tensor_coalesced_": ("all_gather", _all_gather),
    "allreduce_": ("all_reduce", _same),
    "allreduce_coalesced_": ("all_reduce", _same),
    "alltoall_": ("all_to_all", _all_to_all),
    "alltoall_base_": ("all_to_all", _all_to_all_single),
    "barrier": ("barrier", _barrier),
    "broadcast_": ("broadcast", _broadcast),
    "gather_": ("gather", _gather),
    "monitored_barrier_": ("barrier", _barrier),
    "recv_": ("recv", _recv),
    "recv_any_source_": ("recv", _recv_any),
    "reduce_": ("reduce", _reduce),
    "reduce_scatter_": ("reduce_scatter", _reduce_scatter),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", _reduce_scatter),
    "scatter_": ("scatter", _scatter),
    "send": ("send", _send),
}
CANONICAL: Final = {name: operation for name, (operation, _) in _OPERATORS.items()}
