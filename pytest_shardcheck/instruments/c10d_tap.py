"""See every call that reaches a process group, whoever made it, from below the dispatcher.

A kernel of ours at the ``BackendSelect`` key of every ``c10d`` operator passes the call on and
tells the listeners. DDP's C++ reducer, functional collectives and compiled graphs go through the
same operators, and the key is included in every thread, under ``no_grad`` and ``inference_mode``
alike. A ``TorchDispatchMode`` was rejected for this: it makes ``torch.compile`` skip its frames, is
per thread, and a rank that is not measured must not pay for one.

The operators of ``symm_mem`` write into other ranks' memory without a process group: they are
tapped to be named. Functional operators need no kernel: theirs call the ``c10d`` ones.

Limits: what a backend does without the operators is not seen: calls on a backend object
(``group._get_backend(...)``), kernels of a user's own, stores. Calls under NCCL's group start and
end (`_coalescing_manager(device=...)`, which `batch_isend_irecv` uses) are seen one by one. The
cost is one Python call per collective, some microseconds. On fake tensors functional operators
do not call ``c10d`` ones, and are not seen, but in a simulated world (`simulation.mode`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import torch
import torch.distributed

from pytest_shardcheck.vocabulary.call_log import Descriptor, Stream

from ._torch_private import (
    hooks_are_enabled,
    hooks_set_aside,
    profiler_runs,
    schemas_of,
    unboxed_group,
)
from .groups import Group, group_of
from .payloads import CANONICAL, describe, key_of

# Operators that move nothing between ranks.
NOT_COLLECTIVES: Final = {
    "c10d": frozenset({"check_for_nan"}),
    "symm_mem": frozenset({"_async_input_mm", "memset32_"}),
}
_MOST_DESCRIPTORS: Final = 10_000
_IDENTIFYING: Final = frozenset(
    {"Tensor", "List[Tensor]", "List[List[Tensor]]", "int", "List[int]"}
)


class Tapped:
    """One call as the listeners get it, only to look at: it holds the arguments.

    `group` is what is known of the process group that the call reaches, and `descriptor` what it
    moves, the same object for equal calls. Of an operator that we don't know there is no group,
    and of a descriptor only the name.
    """

    __slots__ = ("args", "descriptor", "group", "operator")

    def __init__(
        self, operator: str, args: Sequence[Any], group: Group | None, descriptor: Descriptor
    ) -> None:
        """Take a call of `operator`; one of another namespace than c10d comes with that."""
        self.operator = operator
        self.args = args
        self.group = group
        self.descriptor = descriptor


class Listener(Protocol):
    """What is told of each call."""

    def issued(self, call: Tapped) -> object:
        """Take note that ``call`` begins."""

    def returned(self, token: Any, result: Any) -> None:
        """Take note that the call returned; ``token`` is what ``issued`` gave."""

    def failed(self, token: Any) -> None:
        """Take note that the call raised instead."""


_listeners: tuple[Listener, ...] = ()
_answer: Callable[[torch._ops.OpOverload, Sequence[Any]], Any] | None = None
_descriptors: dict[object, Descriptor] = {}
# Where the process group stands among an operator's arguments, and what a call is known by.
_GROUP_AT: dict[str, int] = {}
_KEYS_AT: dict[str, tuple[int, ...]] = {}
# The kernels live as long as their library objects.
_libraries: list[Any] = []


def install() -> None:
    """Put the kernels in place, once per process; forked children inherit them, and are silent."""
    if _libraries:
        return
    for namespace, ignored in NOT_COLLECTIVES.items():
        # Both are untyped in torch.
        library: Any = torch.library
        _libraries.append(library.Library(namespace, "IMPL"))
        for name in schemas_of(namespace):
            if name not in ignored:
                _tap(_libraries[-1], getattr(getattr(torch.ops, namespace), name), name)
    # A DataLoader's worker is not its rank.
    os.register_at_fork(after_in_child=_forget_listeners)


def listen(listener: Listener) -> None:
    """Tell ``listener`` of every call of this process from now on."""
    global _listeners  # noqa: PLW0603
    _listeners = (*_listeners, listener)


def answer_with(answer: Callable[[torch._ops.OpOverload, Sequence[Any]], Any] | None) -> None:
    """Have ``answer`` return what calls return, instead of passing them on; None ends that.

    For a rank without peers; it gets the operator and its arguments.
    """
    global _answer  # noqa: PLW0603
    _answer = answer


def group_among(operator: str, args: Sequence[Any]) -> Group:
    """Return the process group that a call of a c10d operator reaches."""
    return group_of(unboxed_group(args[_GROUP_AT[operator]]))


def stop_listening(listener: Listener) -> None:
    """Tell ``listener`` no more; harmless when repeated."""
    global _listeners  # noqa: PLW0603
    _listeners = tuple(one for one in _listeners if one is not listener)


def _forget_listeners() -> None:
    global _listeners  # noqa: PLW0603
    _listeners = ()


def _tap(library: Any, packet: Any, name: str) -> None:
    for overload in packet.overloads():
        operator = getattr(packet, overload)
        known = operator.namespace == "c10d"
        if known:
            _GROUP_AT[name] = _place_of_group(operator)
            _KEYS_AT[name] = _places_of_keys(operator)
        kernel = _kernel(operator, name if known else f"{operator.namespace}::{name}")
        library.impl(operator, kernel, "BackendSelect", with_keyset=True)


def _place_of_group(operator: torch._ops.OpOverload) -> int:
    types = [str(argument.type) for argument in operator._schema.arguments]
    return next((at for at, kind in enumerate(types) if "ProcessGroup" in kind), -1)


def _places_of_keys(operator: torch._ops.OpOverload) -> tuple[int, ...]:
    """Return where an operator has tensors and numbers, but for those it can do without."""
    arguments = enumerate(operator._schema.arguments)
    return tuple(
        at
        for at, argument in arguments
        if not argument.has_default_value() and str(argument.type) in _IDENTIFYING
    )


def _tapped(name: str, args: Sequence[Any]) -> Tapped:
    if name not in CANONICAL:
        return Tapped(name, args, None, _named(name))
    group = group_of(unboxed_group(args[_GROUP_AT[name]]))
    key = key_of(name, group, [args[at] for at in _KEYS_AT[name]])
    found = _descriptors.get(key) if key is not None else None
    if found is None:
        found = describe(name, group, args)
        if len(_descriptors) >= _MOST_DESCRIPTORS:
            _descriptors.clear()
        if key is not None:
            _descriptors[key] = found
    return Tapped(name, args, group, found)


def _named(operator: str) -> Descriptor:
    found = _descriptors.get(operator)
    if found is None:
        nowhere = Stream(name="?", label="?", ranks=())
        found = _descriptors[operator] = Descriptor(operation=operator, stream=nowhere)
    return found


def _kernel(operator: torch._ops.OpOverload, name: str) -> Callable[..., Any]:
    redispatch = operator.redispatch
    key = torch._C.DispatchKey.BackendSelect

    def passed_on(below: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _answer is not None and operator.namespace == "c10d":
            return _answer(operator, args)
        return redispatch(below, *args, **kwargs)

    def kernel(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        below = keyset.remove(key)
        listeners = _listeners
        if not listeners:
            return passed_on(below, *args, **kwargs)
        if profiler_runs() and hooks_are_enabled():
            # What runs under a profile keeps the hooks of its thread until it has ended, and a
            # worker needs the interpreter's lock to let them go, while it holds the lock of its
            # work. Who asks that work whether it is completed holds the interpreter's: both wait
            # for ever.
            with hooks_set_aside():
                return issue(listeners, below, args, kwargs)
        return issue(listeners, below, args, kwargs)

    def issue(
        listeners: tuple[Listener, ...],
        below: torch._C.DispatchKeySet,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        __tracebackhide__ = True
        call = _tapped(name, args)
        tokens = [listener.issued(call) for listener in listeners]
        try:
            result = passed_on(below, *args, **kwargs)
        except BaseException:
            for listener, token in zip(listeners, tokens, strict=True):
                listener.failed(token)
            raise
        for listener, token in zip(listeners, tokens, strict=True):
            listener.returned(token, result)
        return result

    return kernel
