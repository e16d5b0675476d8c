"""Process groups without peers: each call returns at once, its work completed.

Nothing is moved. On fake tensors there is nothing to move; real ones (what torch itself exchanges
to come up, tensors of before the test) get what they would if every rank held what this one holds.

Calls are answered where `c10d_tap` sees them, above any backend: torch's own fake group copies the
input to each rank's part of the output, which at 1,024 ranks is 1,024 operators a call, and its
works carry no result, which DDP needs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    FakeProcessGroup,
    Work,
    _create_work_from_future,
)
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import distributed_c10d

from pytest_shardcheck.instruments import c10d_tap
from pytest_shardcheck.vocabulary.errors import UsageError

from .patches import replace

BACKEND: Final = "shardcheck_simulated"
_REDUCING: Final = ("allreduce_", "allreduce_coalesced_", "reduce_")
_UNCHANGED: Final = ("broadcast_", "barrier", "monitored_barrier_", "send")
_BACKWARD: Final = "/torch/autograd/graph.py"
_CALLS: Final = ("/distributed/distributed_c10d.py", "/distributed/_functional_collectives.py")


def install(stack: ExitStack) -> None:
    """Make every group that this process creates one without peers, whatever its backend."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            BACKEND, _create, extended_api=True, devices=["cpu", "cuda", "xpu"]
        )
    replace(stack, distributed_c10d, "_new_process_group_helper", _without_peers)
    # Else functional collectives wait at once, as they do where somebody traces.
    functional: Any = torch.distributed._functional_collectives
    replace(stack, functional, "_are_we_tracing", lambda _: lambda: False)
    c10d_tap.answer_with(_answer)
    stack.callback(c10d_tap.answer_with, None)


def _create(options: Any, _: Any) -> Any:
    return FakeProcessGroup._create_internal(options.group_rank, options.group_size)


def _without_peers(helper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(helper)
    def create(size: int, rank: int, ranks: Any, backend: Any, *args: Any, **options: Any) -> Any:
        options["backend_options"] = None
        options["device_id"] = None
        group, prefix = helper(size, rank, ranks, BACKEND, *args, **options)
        if group in distributed_c10d._world.pg_map:
            # Code that asks for the backend is to go the way that it goes in the real world.
            asked = str(backend) if str(backend) != "undefined" else "gloo"
            distributed_c10d._world.pg_map[group] = (asked, prefix)
        return group, prefix

    return create


def _answer(operator: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
    """Return what an operator of c10d returns when its work is done."""
    tensors = list(_tensors(args[0]))
    for tensor in tensors:
        if isinstance(tensor, FakeTensor) and tensor.constant is not None:
            # Its values were known, and depend on other ranks' from now on.
            tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
    if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        _fill(operator._schema.name.removeprefix("c10d::"), args)
    results = [_result(str(returned.type), args, tensors) for returned in operator._schema.returns]
    return results[0] if len(results) == 1 else tuple(results)


def _result(kind: str, args: Sequence[Any], tensors: list[Tensor]) -> Any:
    return _completed(tensors) if "Work" in kind else args[0]


def _completed(tensors: list[Tensor]) -> Any:
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    work: Work = _create_work_from_future(future)
    return work.boxed()


def _fill(name: str, args: Sequence[Any]) -> None:
    """Fill outputs of real tensors as if every rank held what this one holds."""
    outputs, inputs = list(_tensors(args[0])), list(_tensors(args[1]))
    if name in ("allgather_", "_allgather_base_", "allgather_coalesced_"):
        for output in outputs:
            output.view(-1, *inputs[0].shape).copy_(inputs[0])
    elif name in _UNCHANGED or (name in _REDUCING and _is_of_reducer()):
        return
    else:
        raise UsageError(
            f"{name} on tensors that were made before the test: a simulated rank has no peers to "
            "get their values from. Make them inside the test, where they have no values"
        )


def _is_of_reducer() -> bool:
    """Tell whether DDP calls from C++, in a backward: it asks which parameters were used at all.

    A call from Python has a frame of torch.distributed above autograd's.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(_BACKWARD):
        if frame.f_code.co_filename.endswith(_CALLS):
            return False
        frame = frame.f_back
    return frame is not None


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
