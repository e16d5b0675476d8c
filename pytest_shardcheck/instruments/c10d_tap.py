"""See every call that reaches a process group, whoever made it, from below the dispatcher.

A kernel of ours at the ``BackendSelect`` key of every ``c10d`` operator passes the call on and
tells the listener. DDP's C++ reducer, functional collectives and compiled graphs go through the
same operators, and the key is included in every thread, under ``no_grad`` and ``inference_mode``
alike. A ``TorchDispatchMode`` was rejected for this: it makes ``torch.compile`` skip its frames, is
per thread, and a rank that is not measured must not pay for one.

Limits: what a backend does without the operators (a user's own C++ calls on the backend object) is
not seen. The cost is one Python call per collective, some microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch
import torch.distributed

CANONICAL: Final = {
    "_allgather_base_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "barrier": "barrier",
    "broadcast_": "broadcast",
    "gather_": "gather",
    "monitored_barrier_": "barrier",
    "recv_": "recv",
    "recv_any_source_": "recv",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "scatter_": "scatter",
    "send": "send",
}
# Operators of the namespace that move nothing between ranks.
NOT_COLLECTIVES: Final = frozenset({"check_for_nan"})


class Listener(Protocol):
    """What is told of each call."""

    def issued(self, operator: str, group: str) -> object:
        """Take note that ``operator`` begins on the process group named ``group``."""

    def returned(self, token: Any) -> None:
        """Take note that the call returned; ``token`` is what ``issued`` gave."""


_listener: Listener | None = None
# The kernels live as long as their library object.
_library: Any = None


def install() -> None:
    """Put the kernels in place, once per process; forked children inherit them."""
    global _library  # noqa: PLW0603
    if _library is not None:
        return
    # Both are untyped in torch.
    library: Any = torch.library
    _library = library.Library("c10d", "IMPL")
    for name in operators():
        packet = getattr(torch.ops.c10d, name)
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            kernel = _kernel(operator, name)
            _library.impl(operator, kernel, "BackendSelect", with_keyset=True)


def listen(listener: Listener | None) -> None:
    """Tell ``listener`` of every call of this process from now on; None tells nobody."""
    global _listener  # noqa: PLW0603
    _listener = listener


def operators() -> list[str]:
    """Return the names of the ``c10d`` operators that this torch has.

    torch._C._jit_get_all_schemas is private: ``torch.ops.c10d`` lists only what was used already.
    """
    prefix = "c10d::"
    schemas = torch._C._jit_get_all_schemas()
    return sorted({s.name.removeprefix(prefix) for s in schemas if s.name.startswith(prefix)})


def group_name(arguments: tuple[Any, ...]) -> str:
    """Return what to call the process group among an operator's arguments.

    ProcessGroup.unbox is private: an operator's arguments are script objects.
    """
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return _label(torch._C._distributed_c10d.ProcessGroup.unbox(argument))
    return "?"


def _label(group: torch.distributed.ProcessGroup) -> str:
    """Return a group's description ("default_pg", "mesh_dp"), or its name where it has none."""
    description = str(group.group_desc)
    return str(group.group_name) if description in ("", "undefined") else description


def _kernel(operator: torch._ops.OpOverload, name: str) -> Callable[..., Any]:
    redispatch = operator.redispatch
    key = torch._C.DispatchKey.BackendSelect

    def kernel(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        below = keyset.remove(key)
        listener = _listener
        if listener is None:
            return redispatch(below, *args, **kwargs)
        token = listener.issued(name, group_name(args))
        result = redispatch(below, *args, **kwargs)
        listener.returned(token)
        return result

    return kernel
