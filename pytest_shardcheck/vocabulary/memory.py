"""What one rank's memory was in one region: frozen, plain data. All sizes are bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_shardcheck.vocabulary.plain import Plain

CATEGORIES = ("params", "grads", "optimizer", "buffers")

# What was alive at a peak, in the order in which a storage is claimed.
LIVE_CATEGORIES = (
    "parameters",
    "unsharded parameters",
    "gradients",
    "optimizer state",
    "buffers",
    "saved activations",
    "communication buffers",
    "inputs",
    "temporaries",
)
# Those that a framework can say of a tensor.
HELD_CATEGORIES = (*LIVE_CATEGORIES[:5], "communication buffers")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes(Plain):
    """Hold the state at rest by category; None is what was not watched.

    `own_params` is the part of `optimizer` that are parameters in no watched module: fp32 master
    copies, or those of an optimizer that was built before its model was sharded. None: no such.
    """

    params: int | None = None
    grads: int | None = None
    optimizer: int | None = None
    buffers: int | None = None
    own_params: int | None = None

    @property
    def state(self) -> int | None:
        """Sum the watched categories; None where none was watched."""
        held = [getattr(self, category) for category in CATEGORIES]
        known = [figure for figure in held if figure is not None]
        return sum(known) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """Describe a storage that was alive: `count` equal ones of `bytes` each.

    `shape` and `dtype` are of the tensor that first showed it. `module` is the qualified name of
    the module that ran ("" outside any), `line` the user's file and line ("train.py:12"), `name`
    what the framework that holds it calls it ("" where it was not taught). `steps`
    are the region's steps (from 1, each ends with an optimizer's) in which those were allocated
    that it left behind.
    """

    bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    category: str = ""
    module: str = ""
    line: str = ""
    count: int = 1
    steps: tuple[int, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Describe the moment at which live bytes first exceeded a ceiling: `live` then were."""

    ceiling: int
    live: int
    operator: str = ""
    module: str = ""
    phase: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBytes:
    """Hold the bytes of all storages alive on one device, from the start of a stretch to its end.

    `at_peak` has them by category (`LIVE_CATEGORIES`; their sum is `peak`), `largest` the largest
    storages at the peak, `grown` those that the stretch left behind. Of a phase, `start` is where
    it was first entered, and `end` where it was last left.
    """

    start: int
    end: int
    peak: int
    at_peak: Mapping[str, int] = field(default_factory=dict)
    largest: tuple[TensorRecord, ...] = ()
    grown: tuple[TensorRecord, ...] = ()
    first_crossing: Crossing | None = None

    @property
    def growth(self) -> int:
        """Return the bytes at the end minus those at the start."""
        return self.end - self.start

    @property
    def peak_above_start(self) -> int:
        """Return the peak minus the bytes at the start."""
        return self.peak - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReading(Plain):
    """Hold one rank's memory, per device and per named part.

    `device` is the rank's own ("cpu", "cuda:0"), and the attributes speak of it. `parts` are the
    subtotals of what was watched under a name, over all devices. `live_by_device` are the storages
    alive (`live_unmeasured` says why they could not be counted); `allocated_by_device` and
    `reserved_by_device` the allocator's own peaks, where they were measured. What was not measured
    reads None.
    """

    device: str = "cpu"
    by_device: Mapping[str, StateBytes] = field(default_factory=dict)
    parts: Mapping[str, StateBytes] = field(default_factory=dict)
    live_by_device: Mapping[str, LiveBytes] = field(default_factory=dict)
    live_unmeasured: str = ""
    allocated_by_device: Mapping[str, int] = field(default_factory=dict)
    reserved_by_device: Mapping[str, int] = field(default_factory=dict)

    def on(self, device: str) -> StateBytes:
        """Return the state on `device`; "cuda" without an index is every CUDA device together.

        What was watched and lies elsewhere is 0 here; what was not watched is None.
        """
        names = (*CATEGORIES, "own_params")
        return StateBytes(**{name: self._held(name, device) for name in names})

    def live_on(self, device: str) -> LiveBytes | None:
        """Return the storages alive on `device`; zeros where others were measured, else None.

        "cuda" is the CUDA device with the highest peak: those of several devices are not of one
        moment.
        """
        if not self.live_by_device:
            return None
        held = [live for name, live in self.live_by_device.items() if _is_on(name, device)]
        return max(held, key=lambda live: live.peak, default=LiveBytes(start=0, end=0, peak=0))

    def _held(self, category: str, device: str) -> int | None:
        held = {name: getattr(state, category) for name, state in self.by_device.items()}
        if all(figure is None for figure in held.values()):
            return None
        return sum(figure or 0 for name, figure in held.items() if _is_on(name, device))

    @property
    def params(self) -> int | None:
        """Return the bytes of parameters on the rank's device."""
        return self._held("params", self.device)

    @property
    def grads(self) -> int | None:
        """Return the bytes of gradients on the rank's device."""
        return self._held("grads", self.device)

    @property
    def optimizer(self) -> int | None:
        """Return the bytes of optimizer state on the rank's device."""
        return self._held("optimizer", self.device)

    @property
    def buffers(self) -> int | None:
        """Return the bytes of buffers on the rank's device."""
        return self._held("buffers", self.device)

    @property
    def state(self) -> int | None:
        """Sum the watched categories on the rank's device; None where none was watched."""
        return self.on(self.device).state

    @property
    def live_start(self) -> int | None:
        """Return the bytes alive when the region began."""
        return self._live("start")

    @property
    def live(self) -> int | None:
        """Return the bytes alive when the region ended."""
        return self._live("end")

    @property
    def growth(self) -> int | None:
        """Return the bytes alive at the end minus those at the start: 0 is the leak test."""
        return self._live("growth")

    @property
    def peak(self) -> int | None:
        """Return the most bytes alive at one time."""
        return self._live("peak")

    @property
    def peak_above_start(self) -> int | None:
        """Return the peak minus the bytes alive when the region began."""
        return self._live("peak_above_start")

    @property
    def at_peak(self) -> Mapping[str, int]:
        """Return what was alive at the peak, category to bytes; empty where it was not measured."""
        live = self.live_on(self.device)
        return live.at_peak if live is not None else {}

    @property
    def largest(self) -> tuple[TensorRecord, ...]:
        """Return the largest storages at the peak."""
        live = self.live_on(self.device)
        return live.largest if live is not None else ()

    @property
    def grown(self) -> tuple[TensorRecord, ...]:
        """Return the largest storages that the region left behind."""
        live = self.live_on(self.device)
        return live.grown if live is not None else ()

    @property
    def first_crossing(self) -> Crossing | None:
        """Return where live bytes first exceeded a marker's ceiling; None where they never did."""
        live = self.live_on(self.device)
        return live.first_crossing if live is not None else None

    def allocated_on(self, device: str) -> int | None:
        """Return the allocator's own peak on `device`; None where it was not asked for."""
        return _largest_on(self.allocated_by_device, device)

    def reserved_on(self, device: str) -> int | None:
        """Return the most bytes that CUDA's allocator reserved on `device`; None on others."""
        return _largest_on(self.reserved_by_device, device)

    @property
    def allocated(self) -> int | None:
        """Return the allocator's own peak; None where it was not asked for."""
        return self.allocated_on(self.device)

    @property
    def reserved(self) -> int | None:
        """Return the most bytes that CUDA's allocator reserved; None on other devices."""
        return self.reserved_on(self.device)

    def _live(self, figure: str) -> int | None:
        live = self.live_on(self.device)
        return None if live is None else getattr(live, figure)


def _is_on(name: str, device: str) -> bool:
    return device in (name, name.split(":", maxsplit=1)[0])


def _largest_on(figures: Mapping[str, int], device: str) -> int | None:
    held: Iterable[int] = (figure for name, figure in figures.items() if _is_on(name, device))
    return max(held, default=None)
