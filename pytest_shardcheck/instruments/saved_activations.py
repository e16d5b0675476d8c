"""Saved activations: the tensors that autograd holds, from the moment it packs them until the
graph lets go of them.

`packed` counts all of them; `count`, `bytes` and `storage_bytes` leave parameters and buffers
out, their views included (a Linear saves its transposed weight). A tensor is held as long as the
handle is that our pack hook gives to the graph: a retained graph or a list of losses still holds
it after its backward. Hooks of others run inside ours, and what they return is what is held: the
copy of `save_on_cpu`; nothing for a checkpoint, until it recomputes.

Limits:

- Selective checkpointing and `ctx.stash = tensor` in a custom function keep tensors that no hook
  sees; the live counter does. Hooks of others that keep tensors elsewhere and return a number or
  an object of their own are named in `unseen`.
- Where `torch.func` transforms or `disable_saved_tensors_hooks` forbid hooks, what is saved inside
  is not seen, and `unseen` says so.
- A weight that autocast casts is saved as a copy: that is memory of its own, and counts.
- As under any hooks, a custom function gets back a tensor that requires a gradient as a new
  object: attributes that were set on it are not there. `SavedTensor.register_hooks` raises.
- Tensors without a storage that can be read (mkldnn layouts) count in `packed` and `count` only.
- A graph built before the first region is not seen. What `torch.compile`d code saves is; what it
  recomputes in its own backward is not. Code that is first compiled in a region is compiled again
  outside of it, to the same graph: torch guards on global module hooks.
- What a compiler's frames or a cache keep of a tensor that a hook of somebody else's made counts
  until they let go of it.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeVar

from torch import Tensor, nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from pytest_shardcheck.vocabulary.errors import UsageError

from ._torch_private import PLAIN, graph_task, is_recomputation
from .autograd_runs import autograd_runs
from .held_ranges import part_of
from .hook_stack import HookStack
from .known_state import KnownState
from .saved_hooks import ComposedHooks, PlainHooks, RecomputationHooks
from .saved_ledger import HOOK_RAN, Ledger, Record, Window
from .tensors import plain_tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pytest_shardcheck.vocabulary.saved import SavedReading

    from .held_ranges import Part
    from .hook_stack import Pack, Pair, Unpack
    from .saved_ledger import Event
    from .surroundings import Surroundings

__all__ = ["SavedActivations", "Window"]

_Told = TypeVar("_Told")
_MOST_EVENTS: Final = 20_000
_UNKNOWN: Final = -2  # no run of autograd has this number


class SavedActivations:
    """What autograd saves on this rank while a window is open.

    `held` is called with each tensor that is packed, `released` with what that returned when the
    graph lets go of it: once for each call of `held`, from any thread, and also after the last
    window.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        *,
        held: Callable[[Tensor], _Told] | None = None,
        released: Callable[[_Told], None] | None = None,
    ) -> None:
        """Install nothing yet."""
        self.plain: Pair = PlainHooks(self)
        self._surroundings = surroundings
        self._held: Callable[[Tensor], Any] | None = held
        self._released: Callable[[Any], None] | None = released
        self._known = KnownState()
        self._lasts = False
        self._stack = HookStack(self)
        self._log: deque[Event] = deque()
        self._replaying = Lock()
        self._task, self._phase = _UNKNOWN, "forward"
        self._ledger = Ledger(self._phase)
        self._step_hooks: list[Any] = []

    def start(self) -> None:
        """Install what does not come and go with windows; without it, they bring it along."""
        self._known.install()
        self._lasts = True

    def stop(self) -> None:
        """Remove what `start` installed."""
        self._lasts = False
        self._known.remove()

    def learn(self, state: Iterable[Tensor]) -> None:
        """Take these for parameters and buffers: what is watched, shards and flat ones included.

        `nn.Parameter`s, and parameters and buffers of modules that run, need not be named.
        """
        self._known.learn(state)

    def open(self, known: Iterable[Tensor] = ()) -> Window:
        """Begin a window; what is held counts from its start.

        Args:
            known: parameters and buffers, as for `learn`.
        """
        self.learn(known)
        window = Window(runs_before=autograd_runs())
        self._turn()
        self._replay()
        self._ledger.open(window)
        if not self._stack.installed:
            self._install()
        return window

    def close(self, window: Window) -> SavedReading:
        """End a window and return what autograd saved in it.

        Windows may end in any order; with the last one the hooks are gone.
        """
        window.saw_backward |= autograd_runs() > window.runs_before
        self._replay()
        reading = self._ledger.close(window)
        if not self._ledger.windows:
            self._uninstall()
        return reading

    def composed(self, pack: Pack, unpack: Unpack) -> Pair:
        """Return a pair that runs somebody else's and ours."""
        if is_recomputation(pack):
            return RecomputationHooks(self, pack, unpack)
        return ComposedHooks(self, pack, unpack)

    def hidden(self, reason: str) -> None:
        """Take note of what hides tensors from our hooks."""
        for window in self._ledger.windows:
            window.unseen[reason] = None

    def look(self) -> bool:
        """Log the phase where another begins, and tell whether a window is open.

        Where none is, threads that still run may have our hooks.
        """
        if not self._stack.installed:
            return False
        if graph_task() != self._task:
            self._turn()
        return True

    def keep(self, tensor: Tensor, alive: object, original: Tensor | None = None) -> None:
        """Log a tensor that autograd holds as long as `alive` is.

        Args:
            tensor: what is held.
            alive: what lives just as long.
            original: what it is a detached alias of, which knows whether it is a parameter's view.
        """
        record = Record(alive, self._let_go)
        record.index = 0
        if _is_parameter(tensor if original is None else original):
            record.is_state = True
            record.parts = ()  # half of what a Linear saves: its bytes are nobody's question
        else:
            record.parts = parts = self._parts(tensor)
            record.is_state = bool(parts) and all(self._known.owns(key) for key, _, _ in parts)
        record.label = self._surroundings.module()
        record.told = self._held(tensor) if self._held is not None else None
        self._log.append(record)
        if len(self._log) > _MOST_EVENTS and not self._replaying.locked():
            self._replay()

    def keep_nothing(self) -> None:
        """Log a tensor that was packed and of which autograd holds nothing."""
        self._log.append(HOOK_RAN)

    def _let_go(self, record: Record) -> None:
        # Any thread may be here, from within anything.
        if graph_task() != self._task and self._stack.installed:
            self._turn()
        self._log.append(record)
        if self._released is not None:
            self._released(record.told)

    def _parts(self, tensor: Tensor) -> tuple[Part, ...]:
        if type(tensor) in PLAIN and not tensor.is_meta:
            try:
                return (part_of(tensor),)
            except (NotImplementedError, RuntimeError):
                pass  # it is sparse
        try:
            return tuple(map(part_of, plain_tensors(tensor)))
        except (NotImplementedError, RuntimeError, UsageError):
            # Code that works without us works with us.
            self.hidden(f"a saved {type(tensor).__name__} of layout {tensor.layout} has no bytes")
            return ()

    def _turn(self) -> None:
        self._task = graph_task()
        self._begin(self._surroundings.phase())

    def _begin(self, phase: str) -> None:
        if phase != self._phase:
            self._phase = phase
            self._log.append(phase)

    def _step_begins(self, *_: object) -> None:
        self._begin("optimizer")

    def _step_ends(self, *_: object) -> None:
        self._task = _UNKNOWN  # the surroundings' own hook may come after this one

    def _install(self) -> None:
        self._known.start()
        self._stack.install()
        self._step_hooks = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]

    def _uninstall(self) -> None:
        self._stack.uninstall()
        self._known.stop()
        if not self._lasts:
            self._known.remove()
        for hook in self._step_hooks:
            hook.remove()
        self._step_hooks = []

    def _replay(self) -> None:
        with self._replaying:
            self._ledger.replay(self._log)


def _is_parameter(tensor: Tensor) -> bool:
    """Tell parameters and buffers, and views of them, by their class."""
    base = tensor._base
    owner = tensor if base is None else base
    # A class is compared first: isinstance of a Parameter is a Python function.
    return type(owner) is not Tensor and isinstance(owner, (nn.Parameter, nn.Buffer))
