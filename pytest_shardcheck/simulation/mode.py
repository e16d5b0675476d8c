"""Tensors without data: their shapes, dtypes and bytes are those of the real world.

`torch.FakeTensorMode`, with what a whole test needs beside: collectives that functional operators
make, tensors that were made before the test, and an error that says which line asks for a value.

Limits: a tensor that was made before the test keeps its values among others like it, and gives
them up where it meets one of the test; writing into it from there is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, NoReturn

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    disable_fake_tensor_cache,
    unset_fake_temporarily,
)

from pytest_shardcheck.instruments._torch_private import (
    ASKS_DEVICE,
    PLAIN,
    WorldMode,
    device_told,
    graph_task,
)
from pytest_shardcheck.instruments.tensors import tensors_in
from pytest_shardcheck.vocabulary.errors import NoValueError, UsageError, hide_from_users

from .asking import HOLDS_NOTHING, asking_line
from .dtypes import Dtypes
from .layouts import as_kernels_do
from .real_places import RealPlaces
from .training import Training

_CPU: Final = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
# torch.tensor() hands its new tensor to these, to be made one of the test.
_LIFTING: Final = ("aten::lift_fresh", "aten::lift_fresh_copy", "aten::lift")


class SimulatedMode(WorldMode):  # type: ignore[no-untyped-call]
    """The mode of a simulated rank, from its setup to its teardown."""

    def __init__(self, training: Training) -> None:
        """Take tensors that were made before, too: constants of modules, a tokenizer's ids."""
        super().__init__(allow_non_fake_inputs=True)
        self._real = RealPlaces()
        self._dtypes = Dtypes()
        self._training = training
        self._inside = False
        _remember_only_real(self.fake_tensor_converter)

    def __deepcopy__(self, _: object) -> SimulatedMode:
        """Stay the one mode, also where a copied tensor would take one of its own along."""
        return self

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Say at once on which device a tensor is; run any other operator."""
        __tracebackhide__ = hide_from_users
        if func is ASKS_DEVICE and type(args[0]) is FakeTensor:
            return device_told(args[0])
        if graph_task() != self._training.task:
            self._training.turn()
        if self.rider is None or self._inside:
            return self.dispatch(func, types, args, kwargs)
        self._inside = True  # what an operator runs inside itself is not looked at
        try:
            return self.rider.__torch_dispatch__(func, types, args, kwargs, self.dispatch)
        finally:
            self._inside = False

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator on shapes alone."""
        __tracebackhide__ = hide_from_users
        options = _on_the_cpu(kwargs or {})
        if FakeTensor not in types:
            if not types and self._is_real(func, args, options):
                with unset_fake_temporarily():
                    return func(*args, **options)
        elif func.namespace == "c10d":
            # Above any kernel for shapes alone, which would only add its own errors to ours.
            return func._op_dk(torch._C.DispatchKey.BackendSelect, *args, **options)
        elif func.namespace == "_c10d_functional" and set(types) <= {FakeTensor, *PLAIN}:
            return self._communicate(func, args, options)
        else:
            if func._schema.is_mutable:
                _refuse_writing_into_real(func, args)
            self._dtypes.check(func, args)
        try:
            # The keys of torch's cache would keep alive the storages that they are made of, such as
            # copy.deepcopy's.
            uncached = func._schema.name == "aten::set_"
            with disable_fake_tensor_cache(self) if uncached else nullcontext():
                return as_kernels_do(func, args, super().dispatch(func, types, args, options))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            _no_value(func, error)

    def _is_real(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Tell whether an operator without fake arguments returns real tensors."""
        first = next(tensors_in(args), None)
        if first is not None and func._schema.name not in _LIFTING:
            return True
        return self._real.makes(kwargs.get("dtype") if first is None else first.dtype)

    def _communicate(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run a functional collective as C++ does, which calls the process group.

        Its kernel for shapes calls none, so that no one would count it.
        """
        with self:
            return func.redispatch(_CPU, *args, **kwargs)


def _on_the_cpu(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Say "cpu" for "cpu:0", as real tensors do: fake ones take it for another device.

    Raises:
        UsageError: another device. torch can't follow its tensors far without its drivers, and ends
            the process where it gives up.
    """
    device = kwargs.get("device")
    if not isinstance(device, torch.device) or device.type == "meta":
        return kwargs
    if device.type != "cpu":
        raise UsageError(
            f"{asking_line()}: a tensor on {device} in a simulated world, whose tensors are all on "
            "the CPU: their bytes are the same there. Take the device from `world.device` "
            "(fixture `world`)"
        )
    return kwargs if device.index is None else {**kwargs, "device": torch.device("cpu")}


def _remember_only_real(converter: Any) -> None:
    """Keep no weak references to what operators return: such a parameter can't be converted."""
    remember = converter.set_tensor_memo

    def set_tensor_memo(tensor: Tensor, fake: FakeTensor) -> None:
        if not tensor.is_meta:
            remember(tensor, fake)

    converter.set_tensor_memo = set_tensor_memo


def _refuse_writing_into_real(func: Any, args: Sequence[Any]) -> None:
    for argument, value in zip(func._schema.arguments, args, strict=False):
        info = argument.alias_info
        if info is None or not info.is_write:
            continue
        for tensor in tensors_in((value,)):
            if type(tensor) in PLAIN:
                raise UsageError(
                    f"{asking_line()}: {func} writes into a tensor of shape {list(tensor.shape)} "
                    "that was made before the test, with values that a simulated world does not "
                    "have. Make it (or the model that it belongs to) inside the test or in a "
                    "fixture"
                )


def _no_value(func: Any, error: Exception) -> NoReturn:
    __tracebackhide__ = True
    what = "value" if isinstance(error, DataDependentOutputException) else "shape"
    raise NoValueError(
        f"{asking_line()}: this needs a {what} that depends on what a tensor holds ({func}), and "
        f"{HOLDS_NOTHING}"
    ) from None
