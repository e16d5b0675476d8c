"""Process groups without peers: each call returns at once, its work completed.

On fake tensors there is nothing to move. Real ones are what torch itself tells its peers (objects,
shapes, votes): they travel between simulated ranks (`exchange`). What ranks that are not simulated
would say to all is taken to be what this one says.

Calls are answered where `c10d_tap` sees them, above any backend: torch's own fake group copies the
input to each rank's part of the output, which at 1,024 ranks is 1,024 operators a call, and its
works carry no result, which DDP needs.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import timedelta
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import (
    FakeProcessGroup,
    PythonCallbackWork,
    Work,
)
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed import distributed_c10d

from pytest_shardcheck.instruments import c10d_tap
from pytest_shardcheck.instruments.groups import Group
from pytest_shardcheck.vocabulary.errors import UsageError

from .asking import asking_line
from .exchange import Exchange
from .patches import on_real_tensors, replace

# torch's stubs leave it out.
_work_of: Any = getattr(torch._C._distributed_c10d, "_create_work_from_future")  # noqa: B009

BACKEND: Final = "shardcheck_simulated"
_REDUCING: Final = ("allreduce_", "allreduce_coalesced_", "reduce_")
_GATHERING: Final = ("allgather_", "_allgather_base_")
# Which argument is all ranks' tensor, of (output, input); the other is one rank's.
_WHOLE_AT: Final = {"_allgather_base_": 0, "_reduce_scatter_base_": 1}
_UNCHANGED: Final = ("barrier", "monitored_barrier_")
_BACKWARD: Final = "/torch/autograd/graph.py"
_CALLS: Final = ("/distributed/distributed_c10d.py", "/distributed/_functional_collectives.py")


def install(stack: ExitStack, exchange: Exchange) -> None:
    """Make every group that this process creates one without peers, whatever its backend."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(
            BACKEND, _create, extended_api=True, devices=["cpu", "cuda", "xpu"]
        )
    replace(stack, distributed_c10d, "_new_process_group_helper", _without_peers)
    # Pickles go through storages, which no mode sees.
    for name in ("_object_to_tensor", "_tensor_to_object"):
        replace(stack, distributed_c10d, name, on_real_tensors)
    # Else functional collectives wait at once, as they do where somebody traces.
    functional: Any = torch.distributed._functional_collectives
    replace(stack, functional, "_are_we_tracing", lambda _: lambda: False)
    c10d_tap.answer_with(_Answers(exchange))
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


class _Answers:
    """Answers calls of c10d's operators, given what the simulated ranks can tell each other."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def __call__(self, operator: torch._ops.OpOverload, args: Sequence[Any]) -> Any:
        """Return what an operator returns when its work is done."""
        tensors = list(_tensors(args[0]))
        for tensor in tensors:
            if isinstance(tensor, FakeTensor) and tensor.constant is not None:
                # Its values were known, and depend on other ranks' from now on.
                tensor.fake_mode.fake_tensor_converter.invalidate_constant_aliases(tensor.constant)
        _check_sizes(operator._schema.name.removeprefix("c10d::"), args)
        work = None
        if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):
            work = self._tell(operator._schema.name.removeprefix("c10d::"), args, tensors)
        results = [
            (work or _completed(tensors)).boxed() if "Work" in str(kind.type) else args[0]
            for kind in operator._schema.returns
        ]
        return results[0] if len(results) == 1 else tuple(results)

    def _tell(self, name: str, args: Sequence[Any], outputs: list[Tensor]) -> Work | None:
        """Give outputs of real tensors their values; return the work that does, if it takes any."""
        if name in ("send", "recv_"):
            return self._message(name, args, outputs)
        group = c10d_tap.group_among(name, args)
        if name in _GATHERING:
            self._gather(group, outputs, list(_tensors(args[1])))
            return None
        if name == "broadcast_":
            self._broadcast(group, group.global_rank(args[2]), outputs)
            return None
        if name in _UNCHANGED or (name in _REDUCING and _is_of_reducer()):
            return None
        raise UsageError(
            f"{name} in a simulated world on tensors with values (objects, or tensors that were "
            "made before the test): nobody works out what they come to there. Make tensors inside "
            "the test, where they have none; leave objects out with `if not world.simulated:`"
        )

    def _message(self, name: str, args: Sequence[Any], tensors: list[Tensor]) -> Work | None:
        group = c10d_tap.group_among(name, args)
        peer, tag = group.global_rank(args[2]), args[3]
        exchange = self._exchange
        if not exchange.reaches([peer]):
            raise UsageError(
                f"a message between rank {exchange.rank} and rank {peer}, which is not simulated: "
                'pipelines and other code whose ranks talk to each other need ranks="all" in '
                "world_size(..., simulate=True)"
            )
        if name == "send":
            label = exchange.next_message(group, exchange.rank, peer, tag)
            for number, tensor in enumerate(tensors):
                exchange.post(f"{label}.{number}", tensor)
            return None
        label = exchange.next_message(group, peer, exchange.rank, tag)

        def receive(_: timedelta) -> bool:
            with unset_fake_temporarily():
                for number, tensor in enumerate(tensors):
                    exchange.fetch(f"{label}.{number}", tensor)
            return True

        return PythonCallbackWork(receive)

    def _gather(self, group: Group, outputs: list[Tensor], inputs: list[Tensor]) -> None:
        """Fill each rank's part: with this rank's own where the others are not simulated."""
        (own,) = inputs
        parts = outputs if len(outputs) == group.size else list(outputs[0].chunk(group.size))
        if not self._exchange.reaches(group.ranks):
            for part in parts:
                part.copy_(own.view(part.shape))
            return
        label = self._exchange.next_call(group)
        self._exchange.post(f"{label}.{self._exchange.rank}", own)
        for rank, part in zip(group.ranks, parts, strict=True):
            self._exchange.fetch(f"{label}.{rank}", part)

    def _broadcast(self, group: Group, root: int, tensors: list[Tensor]) -> None:
        """Hand over the root's values; those of one that is not simulated are taken for ours."""
        label = self._exchange.next_call(group)
        for number, tensor in enumerate(tensors):
            if self._exchange.rank == root:
                self._exchange.post(f"{label}.{number}", tensor)
            elif self._exchange.reaches([root]):
                self._exchange.fetch(f"{label}.{number}", tensor)


def _check_sizes(name: str, args: Sequence[Any]) -> None:
    """Refuse a whole that is not its parts' size or dtype, as backends do: none is asked here."""
    if name not in _WHOLE_AT:
        return
    whole, part = args[_WHOLE_AT[name]], args[1 - _WHOLE_AT[name]]
    size = c10d_tap.group_among(name, args).size
    if whole.dtype is not part.dtype or whole.numel() != size * part.numel():
        raise RuntimeError(
            f"{asking_line()}: {name} of {size} ranks: {whole.numel()} elements of {whole.dtype} "
            f"are not {size} times {part.numel()} of {part.dtype}"
        )


def _completed(tensors: list[Tensor]) -> Work:
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    work: Work = _work_of(future)
    return work


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
