"""See each operator of a thread, and the storages that it shows.

This is the hot path: an operator costs some microseconds, most of them torch's for calling a mode
at all. Inputs are looked at as well as outputs: a storage that no operator made (`from_numpy`, a
compiled kernel's output, a model built at import) joins when one first reads it.

Limits: what an operator allocates and frees inside itself is not seen, neither are storages that
only compiled code or a thread of C++ touches, nor tensors of opaque layouts (mkldnn). An operator
of a library that resizes its argument's storage and does not return it is not seen until the next
that does.
"""

from __future__ import annotations

from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import TorchDispatchMode

from ._torch_private import (
    ACCUMULATES,
    current_node,
    is_only_inferred,
    keep_from_compiler,
    sequence_number,
    works_in,
    world_here,
)
from .blocks import COMMUNICATED, GRADIENT, Place
from .tensors import SEQUENCES, readable_tensors, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .blocks import Block, Ledger
    from .settling import Settling
    from .surroundings import Surroundings

# How to look at a value, by its type.
_NOTHING, _PLAIN, _SEVERAL, _OTHER = range(4)
_sorts: dict[type, int] = {Tensor: _PLAIN, nn.Parameter: _PLAIN, FakeTensor: _PLAIN}
_passes: dict[type, bool] = {FakeTensor: True}

# What AccumulateGrad does with a gradient: it takes it, copies it, or adds it to the one there.
_ACCUMULATING: Final = frozenset({"detach", "clone", "add_", "add", "new_empty_strided"})
# Gives a collective's result its wrapper; taken for a collective, its argument, the result, would
# stand for those that wait.
_WRAPPING: Final = "_wrap_tensor_autograd"
# Namespaces: "prim" has what tensors are asked.
_NO_WORK: Final = frozenset({"profiler", "prim"})
_RESIZING: Final = frozenset({"set_", "resize_", "resize_as_", "_resize_output_"})


class Traits:
    """What is known of an operator.

    `makes`: it can make or resize storages. `works`: it belongs to the phase that it stands in, as
    those do not by which the profiler notes that a step ended, or fake tensors tell their device
    (`tensor.is_meta`, as we ask). `after` is what else to do.
    """

    __slots__ = ("after", "makes", "works")

    def __init__(
        self, makes: bool, works: bool, after: Callable[[Any, Any, Any], None] | None
    ) -> None:
        """Describe an operator."""
        self.makes = makes
        self.works = works
        self.after = after


class Witness:
    """Tell a ledger of the storages that operators show, with where the code stood.

    `turn` is called before the first operator of another phase, `rise` after one that brought a
    device above its threshold, with the block that it allocated last there.
    """

    def __init__(
        self,
        ledger: Ledger,
        surroundings: Surroundings,
        settling: Settling,
        turn: Callable[[str], None],
        rise: Callable[[Block], None],
    ) -> None:
        """See nothing yet."""
        self.off = False
        self.other_threads = False  # than the main one have allocated
        self.phase = "forward"
        self._main = main_thread().ident
        self.turn = turn
        self.surroundings = surroundings
        self.traits: dict[int, Traits] = {}
        self._operators: list[object] = []  # an id is a key as long as its object lives
        self._ledger = ledger
        self._known = ledger.known
        self._settling = settling
        self._rise = rise
        self.risen: list[Block] = []

    def look(self, values: Iterable[object], operator: object, returned: bool = False) -> None:
        """Look at an operator's arguments, or at what it returned: it may have resized that."""
        known = self._known
        for value in values:
            sort = _sorts.get(type(value))
            if not sort:
                if sort is None and _sort_of(value):
                    self.look((value,), operator, returned)
            elif sort == _PLAIN:
                try:
                    storage = value.untyped_storage()  # type: ignore[attr-defined]
                except (NotImplementedError, RuntimeError):  # sparse
                    self._parts(value, operator)
                    continue
                home = known.get(id(storage))
                if home is None:
                    self._born(value, storage, operator)
                elif returned and storage.nbytes() != home.block.bytes:
                    self.resized(storage, operator)
            elif sort == _SEVERAL:
                self.look(value, operator, returned)  # type: ignore[arg-type]
            else:
                self._parts(value, operator)

    def check(self) -> None:
        """Look at devices that have come above their thresholds in the last operator."""
        risen, self.risen = self.risen, []
        self._ledger.drain()
        for block in {block.device: block for block in risen}.values():
            if block.device.live > block.device.threshold:
                self._rise(block)

    def resized(self, storage: torch.UntypedStorage, operator: object) -> None:
        """Take note that a known storage may have another size now."""
        home = self._known.get(id(storage))
        size = storage.nbytes()
        if home is not None and type(size) is int and size != home.block.bytes:
            self._look_at(self._ledger.resize(home, size, self._place(operator)))

    def learn(self, operator: Any) -> Traits:
        """Find out about an operator that is seen for the first time."""
        self._operators.append(operator)
        name = str(operator).split(".")[1]
        makes = not operator.is_view
        if operator.namespace == "aten" and name.endswith("_") and name not in _RESIZING:
            makes = False  # it writes into its arguments, which are looked at anyway
        works = operator.namespace not in _NO_WORK
        traits = Traits(makes, works, self._after(operator.namespace, name))
        self.traits[id(operator)] = traits
        return traits

    def _after(self, namespace: str, name: str) -> Callable[[Any, Any, Any], None] | None:
        if namespace == "c10d":
            return self._collective
        if namespace == "_c10d_functional" and name != _WRAPPING:
            return self._waited_for if name == "wait_tensor" else self._functional
        if namespace == "inductor" and name == "resize_storage_bytes_":
            return self._resized_inside
        if namespace == "aten" and name == "copy_":
            return self._copied
        return self._accumulated if namespace == "aten" and name in _ACCUMULATING else None

    def _parts(self, value: Any, operator: object) -> None:
        """Look at a tensor that consists of others, or of which only a slower way is known."""
        with torch._C.DisableTorchFunctionSubclass():
            for tensor in readable_tensors(value):
                storage = tensor.untyped_storage()
                if id(storage) in self._known:
                    self.resized(storage, operator)
                else:
                    self._born(tensor, storage, operator)

    def _born(self, tensor: Any, storage: torch.UntypedStorage, operator: object) -> None:
        if type(tensor) is FakeTensor and is_only_inferred(tensor):
            return
        device = self._ledger.device_of(tensor.device)
        # A size is a symbol where somebody traces: that is no memory of this rank.
        if device is not None and type(storage.nbytes()) is int:
            if get_ident() != self._main:
                self.other_threads = True
            place = self._place(operator)
            self._look_at(self._ledger.take_in(storage, device, tensor, place))

    def _place(self, operator: object) -> Place:
        return Place(operator, self.surroundings.module(), self.surroundings.line())

    def _look_at(self, block: Block) -> None:
        device = block.device
        if device.live > device.threshold:
            self.risen.append(block)

    def _collective(self, args: Any, kwargs: Any, result: Any) -> None:
        tensors = [*_tensors(args), *_tensors(kwargs), *_tensors(result)]
        self._ledger.mark(tensors, COMMUNICATED)
        works = list(works_in(result))
        self._settling.issued(None, None)
        for work in works:
            self._settling.issued(work, tensors)

    def _functional(self, args: Any, kwargs: Any, result: Any) -> None:
        inputs = [*_tensors(args), *_tensors(kwargs)]
        outputs = _tensors(result)
        self._ledger.mark([*inputs, *outputs], COMMUNICATED)
        self._settling.issued(None, None)
        for output in outputs:
            self._settling.issued(None, inputs, key=id(output.untyped_storage()))

    def _waited_for(self, args: Any, _: Any, __: Any) -> None:
        for tensor in _tensors(args):
            self._settling.finished(id(tensor.untyped_storage()))

    def _resized_inside(self, args: Any, kwargs: Any, _: Any) -> None:
        for tensor in [*_tensors(args), *_tensors(kwargs)]:
            self.resized(tensor.untyped_storage(), "inductor.resize_storage_bytes_")

    def _accumulated(self, _: Any, __: Any, result: Any) -> None:
        if self._accumulates():
            self._ledger.mark(_tensors(result), GRADIENT)

    def _accumulates(self) -> bool:
        """Tell whether a gradient is being accumulated, or a hook on that runs.

        An optimizer that steps in such a hook runs in that node too, and accumulates nothing.
        """
        if self.surroundings.phase() != "backward":
            return False
        node = current_node()
        return node is not None and sequence_number(node) == ACCUMULATES

    def _copied(self, _: Any, __: Any, result: Any) -> None:
        """See DDP's reducer put a gradient into its bucket, which a hook may never communicate.

        AccumulateGrad itself copies only into what it has just made, and that is marked.
        """
        if self._accumulates() and result._is_view():
            self._ledger.mark(_tensors(result), COMMUNICATED)


class StorageMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Show a witness the operators of the threads that entered it.

    Wrapper subclasses (DTensor, a collective's result) come first: what they do inside is seen, and
    would not be if the mode took their operators. Compiled code is left alone: a mode that is not
    lets dynamo skip its frames.
    """

    def __init__(self, witness: Witness) -> None:
        """Show operators to `witness`."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._witness = witness

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let `torch.compile` compile."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # `keep_from_compiler` does it

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        run: Callable[..., Any] | None = None,
    ) -> Any:
        """Run the operator, then look at what it showed.

        `run` is the `dispatch` of a mode that takes us along.
        """
        for kind in types:
            if not _passes.get(kind) and not _is_passed(kind):
                if kind is FunctionalTensor:  # torch traces DDP's buckets without hiding modes
                    return _unseen(run, func, types, args, kwargs)
                return NotImplemented
        witness = self._witness
        if witness.off:
            return _unseen(run, func, types, args, kwargs)
        traits = witness.traits.get(id(func)) or witness.learn(func)
        phase = witness.surroundings.phase()
        if phase != witness.phase and traits.works:
            witness.turn(phase)
        result = run(func, types, args, kwargs) if run else func(*args, **(kwargs or {}))
        if kwargs:
            witness.look(kwargs.values(), func)
        witness.look(args, func)
        if traits.makes:
            witness.look((result,), func, True)
        if traits.after is not None:
            traits.after(args, kwargs, result)
        if witness.risen:
            witness.check()
        return result


keep_from_compiler(StorageMode.__torch_dispatch__)


class Ride:
    """Enters a storage mode by having the mode of a simulated world take it along.

    As a mode of its own it would have every operator dispatched once more, which costs as much as
    all that it looks at.
    """

    def __init__(self, world: Any, mode: StorageMode) -> None:
        """Let `world`, which calls its `rider` with a way to run each operator, take `mode`."""
        self._world = world
        self._mode = mode

    def __enter__(self) -> StorageMode:
        """Get on."""
        self._world.rider = self._mode
        return self._mode

    def __exit__(self, *_: object) -> None:
        """Get off."""
        self._world.rider = None


def to_enter(mode: StorageMode) -> StorageMode | Ride:
    """Return how this thread is to enter a mode."""
    world = world_here()
    return mode if world is None or world.rider is not None else Ride(world, mode)


def _unseen(
    run: Callable[..., Any] | None,
    func: Any,
    types: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
) -> Any:
    return run(func, types, args, kwargs) if run else func(*args, **(kwargs or {}))


def _is_passed(kind: type) -> bool:
    """Tell whether the mode takes operators that have this type among their arguments.

    Torch lists types with a `__torch_dispatch__` of their own, which are wrappers but for fake
    tensors, and some without one (FSDP1's flat parameters).
    """
    plain = vars(Tensor)["__torch_dispatch__"]
    is_plain = getattr(kind, "__torch_dispatch__", plain) is plain
    return _passes.setdefault(kind, is_plain or issubclass(kind, FakeTensor))


def _sort_of(value: object) -> int:
    if isinstance(value, Tensor):
        sort = _OTHER
    else:
        sort = _SEVERAL if isinstance(value, SEQUENCES) else _NOTHING
    return _sorts.setdefault(type(value), sort)


def _tensors(value: object) -> list[Tensor]:
    return [plain for tensor in tensors_in(value) for plain in readable_tensors(tensor)]
