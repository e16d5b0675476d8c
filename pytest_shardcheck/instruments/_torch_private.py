"""Every private torch interface that the instruments read, each with its reason."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from torch._C._profiler import _EventType
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.distributed import distributed_c10d

# The protocol by which torch.compile opens wrapper subclasses. `DTensor.to_local()` would record
# autograd nodes and wait for collectives; this only reads attributes.
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import FrameType, ModuleType

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

# The number of the autograd run that this thread is in, -1 outside of any: there is no public way
# to ask whether autograd runs. It is asked at each operator, so it is not wrapped.
graph_task: Callable[[], int] = torch._C._current_graph_task_id

# A node's sequence number where it is an AccumulateGrad.
ACCUMULATES: Final = (1 << 64) - 1

# What runs a module's forward and all hooks around it: its frames say how many modules are called.
MODULE_CALL: Final[CodeType] = nn.Module._call_impl.__code__

# FlatParameter's documented attributes. They are not all there: mixed precision, offloading and
# the sharding strategy decide. Freed ones keep their shape with a storage of 0 bytes.
_FLAT_SHARDS = ("_local_shard", "_mp_shard")
_FLAT_UNSHARDED = ("_full_param_padded", "_full_prec_full_param_padded")
PLAIN: Final = (Tensor, nn.Parameter)  # the types that wrap nothing

# What `is_meta` and C++ call to learn a fake tensor's device (its `device` does not): two of three
# operators of a simulated step are this one.
ASKS_DEVICE: Final[Any] = torch.ops.prim.device.default
_META: Final = torch.device("meta")
_FLAT_GRADS = ("_saved_grad_shard", "_cpu_grad")


def storage_key(storage: torch.UntypedStorage) -> int:
    """Return what identifies a living storage: `data_ptr` is 0 on meta and fake ones."""
    return int(storage._cdata)


def inner_tensors(tensor: Tensor) -> list[Tensor] | None:
    """Return the tensors that a wrapper subclass consists of, or None for a plain tensor."""
    if type(tensor) in PLAIN:
        return None
    value: Any = tensor  # mypy takes Tensor and the protocol for incompatible
    if is_traceable_wrapper_subclass(value):
        names, _ = value.__tensor_flatten__()
        inner = [getattr(value, name) for name in names]
    elif _has_no_storage(tensor):
        inner = list(vars(tensor).values())
    else:
        return None
    return [item for item in inner if isinstance(item, Tensor)]


def _has_no_storage(tensor: Tensor) -> bool:
    """Tell a wrapper without `__tensor_flatten__`, by the storage that raises when read."""
    # Sparse tensors have no storage and are no wrappers; fake ones have bytes without data.
    fake = isinstance(tensor, torch._subclasses.FakeTensor)
    if fake or tensor.layout != torch.strided:
        return False
    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return True
    return False


def sparse_coo_tensors(tensor: Tensor) -> list[Tensor]:
    """Return indices and values; `indices()` refuses the uncoalesced gradients of embeddings."""
    return [tensor._indices(), tensor._values()]


def hidden_params(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameter tensors of this very module that `parameters()` need not show.

    FSDP1 with `use_orig_params` registers views of a flat parameter that it keeps to itself.
    FSDP2 registers either the sharded or the unsharded parameter, and holds both while unsharded.
    """
    for flat in _flat_parameters(module):
        yield flat
        yield from _attributes(flat, _FLAT_SHARDS + _FLAT_UNSHARDED)
    for param in _fsdp2_params(module):
        yield from _attributes(
            param, ("sharded_param", "_unsharded_param", "_sharded_post_forward_param")
        )


def unsharded_params(module: nn.Module) -> Iterator[Tensor]:
    """Yield what FSDP gathered this very module's parameters into, freed or not.

    A freed one is a storage of 0 bytes, kept to be regrown.
    """
    for flat in _flat_parameters(module):
        yield from _attributes(flat, _FLAT_UNSHARDED)
    for param in _fsdp2_params(module):
        yield from _attributes(param, ("_unsharded_param",))
        yield from getattr(param, "all_gather_outputs", ())


def hidden_grads(module: nn.Module) -> Iterator[Tensor]:
    """Yield gradients of this very module that are in no `.grad`: accumulated, or on the CPU."""
    for flat in _flat_parameters(module):
        yield from _attributes(flat, _FLAT_GRADS)
    for group in _fsdp2_groups(module):
        yield from _attributes(group, ("_partial_reduce_output",))
    for param in _fsdp2_params(module):
        yield from _attributes(param, ("unsharded_accumulated_grad",))


def _flat_parameters(module: nn.Module) -> Iterator[Tensor]:
    """Yield the flat parameter of an FSDP1 module, which only its handle names."""
    # The class first: a module searches long for an attribute that it has not.
    if _is_of_fsdp(module, "FullyShardedDataParallel"):
        handle = getattr(module, "_handle", None)
        if handle is not None:
            yield handle.flat_param


def _fsdp2_groups(module: Any) -> list[object]:
    """Return an FSDP2 module's parameter groups: no public call names the sharded parameters
    while a module is unsharded. torch before 2.12 has one group, under a name in the singular."""
    if not _is_of_fsdp(module, "FSDPModule"):
        return []
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [state._fsdp_param_group]
    return [group for group in groups if group is not None]


def _fsdp2_params(module: nn.Module) -> Iterator[object]:
    for group in _fsdp2_groups(module):
        yield from group.fsdp_params  # type: ignore[attr-defined]


def _is_of_fsdp(module: object, name: str) -> bool:
    """Tell a module of an FSDP class. Importing FSDP is 2 s, which nobody without it should pay."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, getattr(fsdp, name, ()))


def _attributes(owner: object, names: tuple[str, ...]) -> Iterator[Tensor]:
    for name in names:
        value = getattr(owner, name, None)
        if isinstance(value, Tensor):
            yield value


class WorldMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A fake mode for a whole test: its tensors are what a rank would hold.

    It calls `rider`, if there is one, as a dispatch mode above it would be called, and with a
    function that runs the operator.
    """

    rider: Any = None


def world_here() -> WorldMode | None:
    """Return the mode of the simulated world that this thread is in."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode if isinstance(mode, WorldMode) else None


def device_told(asked: FakeTensor) -> torch.device:
    """Return what `ASKS_DEVICE` returns: inside a kernel for shapes a fake tensor is a meta one."""
    return _META if asked.fake_mode.in_kernel_invocation else asked.fake_device


def is_only_inferred(tensor: FakeTensor) -> bool:
    """Tell whether a fake tensor is nobody's memory: torch asks by it what an operator returns.

    Whoever does so enters a mode of his own, or the mode of a simulated world once more.
    """
    mode = tensor.fake_mode
    if isinstance(mode, WorldMode) and len(mode.enter_stack) == 1:
        return False
    return propagates_shardings() or traces_a_graph()


def propagates_shardings() -> bool:
    """Tell whether DTensor works out what an operator will return: the first time that it sees one
    it runs it on fake tensors of the whole size, which are nobody's memory."""
    propagation = sys.modules.get("torch.distributed.tensor._sharding_prop")
    if propagation is None:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == propagation.__file__:
            return True
        frame = frame.f_back
    return False


def traces_a_graph() -> bool:
    """Tell whether torch.compile traces: on fake tensors, which are nobody's memory."""
    return torch._guards.TracingContext.try_get() is not None


def current_node() -> Any:
    """Return the autograd node that this thread runs, None outside of any."""
    return torch._C._current_autograd_node()


def sequence_number(node: Any) -> int:
    """Return the number that autograd gave a node when the forward made it."""
    return int(node._sequence_nr())


def forward_sequence_number() -> int:
    """Return the number that this thread's next autograd node will get."""
    return int(torch._C._autograd._get_sequence_nr())


def allocation_totals(ended: Any) -> list[tuple[int, int]]:
    """Return (time, bytes allocated by then) of each event of the CPU allocator in a profile.

    The public events of a profile have an allocation's size and not the allocator's total.
    """
    totals = []
    events = list(ended.profiler.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        events.extend(event.children)
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
            totals.append((int(event.start_time_ns), int(event.extra_fields.total_allocated)))
    return totals


def profiler_runs() -> bool:
    """Tell whether a profile runs: starting another is no error, and it records nothing."""
    return bool(torch._C._autograd._profiler_enabled())


def work_class() -> Any:
    """Return the class of what asynchronous collectives return, None without torch.distributed.

    `torch.distributed.Work` is that very class; only its methods can tell who waited.
    """
    return getattr(torch.distributed, "Work", None)


def works_in(result: object) -> Iterator[object]:
    """Yield the works among what a c10d operator returned: the very objects that the user gets.

    Operators carry them as script objects, which only `Work.unbox` opens.
    """
    for item in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(item, torch.ScriptObject) and "Work" in str(item._type()):
            yield torch._C._distributed_c10d.Work.unbox(item)


def keep_from_compiler(function: Any) -> None:
    """Let dynamo run a function, and what it calls, as it is.

    `torch._disable_dynamo` imports dynamo, which takes a second in each rank, and costs 1.5 us a
    call. This is what it ends in.
    """
    _skip_frames([function.__code__], callees=True)


# The module whose functions push, pop and forbid hooks on saved tensors. Hooks nest and only the
# innermost runs: no public call adds to those that others push.
SAVED_TENSOR_HOOKS: Any = torch._C._autograd
push_hooks = torch._C._autograd._push_saved_tensors_default_hooks
pop_hooks = torch._C._autograd._pop_saved_tensors_default_hooks


def top_hooks() -> tuple[Any, Any] | None:
    """Return the pair of hooks that this thread's saved tensors meet."""
    # True: also while torch.compile traces, when the hooks are there and don't run.
    top: tuple[Any, Any] | None = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top


@contextmanager
def hooks_set_aside() -> Iterator[None]:
    """Run a block without this thread's hooks on saved tensors."""
    pairs = []
    while (top := top_hooks()) is not None:
        pop_hooks()
        pairs.append(top)
    try:
        yield
    finally:
        for pair in reversed(pairs):
            push_hooks(*pair)


def hooks_are_enabled() -> bool:
    """Tell whether this thread may push hooks: torch.func transforms forbid it."""
    return bool(torch._C._autograd._saved_tensors_hooks_is_enabled())  # type: ignore[attr-defined]


def is_checkpoint(pack: object) -> bool:
    """Tell the hook by which a non-reentrant checkpoint drops what its forward would save."""
    return _is_hook_of_checkpoint(pack, "_checkpoint_hook")


def is_recomputation(pack: object) -> bool:
    """Tell the hook by which a non-reentrant checkpoint keeps what it recomputed.

    It keeps a tensor longer than the graph does that it returns it to.
    """
    return _is_hook_of_checkpoint(pack, "_recomputation_hook")


def _is_hook_of_checkpoint(pack: object, owner: str) -> bool:
    name = getattr(pack, "__qualname__", "")
    module = getattr(pack, "__module__", "")
    return module == "torch.utils.checkpoint" and str(name).startswith(f"{owner}.")


def run_backward(output: Tensor, leaf: Tensor, gradient: Tensor) -> None:
    """Run autograd once and keep the graph: `torch.autograd.grad` costs four times as much."""
    torch.autograd.Variable._execution_engine.run_backward(
        (output,), (gradient,), True, False, (leaf,), True, False
    )


# How many modes would see each attribute that we read (`torch.device` as a context is one), and
# each operation that we run. Asked at each saved tensor, and so not wrapped.
function_modes: Callable[[], int] = torch._C._len_torch_function_stack
dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack


def innermost_dispatch_mode() -> object:
    """Return the dispatch mode that sees an operator first; None where there is none."""
    return torch.utils._python_dispatch._get_current_dispatch_mode()


@contextmanager
def without_dispatch() -> Iterator[None]:
    """Run operations on plain tensors that no dispatch mode sees."""
    guard = torch._C._DisableTorchDispatch()
    try:
        yield
    finally:
        del guard


@contextmanager
def unseen_by_modes() -> Iterator[None]:
    """Run operations on plain tensors that no mode sees."""
    with torch._C.DisableTorchFunction(), without_dispatch():
        yield


def schemas_of(namespace: str) -> list[str]:
    """Return the names of a namespace's operators: `torch.ops` lists only those used before."""
    prefix = f"{namespace}::"
    schemas = torch._C._jit_get_all_schemas()
    return sorted({s.name.removeprefix(prefix) for s in schemas if s.name.startswith(prefix)})


def unboxed_group(argument: Any) -> ProcessGroup:
    """Return the process group among an operator's arguments, which are script objects."""
    return torch._C._distributed_c10d.ProcessGroup.unbox(argument)


def ranks_of(group: ProcessGroup) -> dict[int, int] | None:
    """Return torch's own mapping of a group's global ranks to its ranks; None for a stranger.

    `get_process_group_ranks` makes a list of it each time, and we need what identifies a group:
    torch gives a destroyed group's name to the next one.
    """
    ranks: dict[int, int] | None = distributed_c10d._world.pg_group_ranks.get(group)
    return ranks


def groups_of_rank() -> list[ProcessGroup]:
    """Return all process groups that this rank is in, the default one first."""
    return list(distributed_c10d._world.pg_names)


def is_mesh_of_groups(mesh: DeviceMesh) -> bool:
    """Tell whether a mesh has been given its groups: a slice gets them after it was made."""
    return hasattr(mesh, "_dim_group_names")


def axes_of(mesh: DeviceMesh) -> list[tuple[str, str]]:
    """Return each axis of a mesh with its group's name; none on a rank outside of the mesh.

    `get_group` raises there, and looks an axis up that may be gone with its group.
    """
    names = getattr(mesh, "_dim_group_names", [])
    return list(zip(mesh.mesh_dim_names or (), map(str, names), strict=False))


def hide_from_compiler(modules: Iterable[ModuleType], *, callees: bool) -> None:
    """Keep torch.compile from compiling the functions of these modules, and what those call.

    Hooks run where compiled code does, and their frames would be compiled, counted and warned of.
    `torch.compiler.disable` wraps each function, and imports a second's worth of compiler.
    """
    for module in modules:
        _skip_frames(_codes(vars(module), module.__name__), callees=callees)


def inductor_graph_class() -> Any:
    """Return the class whose calls run what inductor compiled, None where nobody loaded it."""
    module = sys.modules.get("torch._inductor.output_code")
    return getattr(module, "CompiledFxGraph", None)


def inductor_modules() -> int:
    """Return how many modules inductor has generated and loaded in this process."""
    codecache = sys.modules.get("torch._inductor.codecache")
    cache = getattr(codecache, "PyCodeCache", None)
    return len(cache.modules) if cache is not None else 0


def watch_calls(callable_class: Any, note: Callable[[], None]) -> Callable[[], None]:
    """Call `note` before each call of an instance of a class; return what undoes it.

    AOTAutograd calls its compiled graphs without any hook.
    """
    original = callable_class.__call__

    def __call__(graph: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
        note()
        return original(graph, *args, **kwargs)

    def undo() -> None:
        callable_class.__call__ = original

    _skip_frames([__call__.__code__], callees=False)
    callable_class.__call__ = __call__
    return undo


def _skip_frames(codes: Iterable[CodeType], *, callees: bool) -> None:
    frames = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    strategy = frames._FrameExecStrategy(skip, skip if callees else default)
    for code in codes:
        frames.set_code_exec_strategy(code, strategy)


def _codes(namespace: Mapping[str, Any], module: str) -> Iterator[CodeType]:
    """Yield the code of a module's functions, methods and what is nested in them."""
    for value in namespace.values():
        if getattr(value, "__module__", module) != module:
            continue
        if isinstance(value, type):
            yield from _codes(vars(value), module)
        function = getattr(value, "fget", getattr(value, "__func__", value))
        function = getattr(function, "__wrapped__", function)
        if isinstance(function, FunctionType):
            yield from _nested(function.__code__)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)
