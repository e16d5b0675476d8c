"""The allocator's own peak: a second source beside the live counter, never mixed with it.

On CUDA the caching allocator's statistics, which cost nothing. On the CPU the allocator's events
through torch's profiler, which sees what no dispatch shows (workspaces inside an operator) and
costs time: it runs only where a marker asks for it, from the test's setup on, and its total is of
what was allocated since then.

Limits: on the CPU what threads allocate is not in it, nor the release of what was allocated before
the setup; a test that profiles itself can't run under it. On CUDA a region resets the peak
statistics of its device, so a test's own `max_memory_allocated` begins there too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from pytest_shardcheck.vocabulary.errors import UsageError

from ._torch_private import allocation_totals, profiler_runs

_LAST: Final = 2
_IN_THE_WAY: Final = (
    "the allocator is followed through torch's profiler, and another profile runs; "
    "don't profile inside a test that judges allocated"
)


@dataclass(slots=True, eq=False)
class Peaks:
    """The peaks of a region while it is open, device to bytes."""

    allocated: dict[str, int] = field(default_factory=dict)
    reserved: dict[str, int] = field(default_factory=dict)

    def raise_to(self, device: str, allocated: int, reserved: int | None = None) -> None:
        """Take note of what was allocated (and reserved) at one moment."""
        self.allocated[device] = max(allocated, self.allocated.get(device, 0))
        if reserved is not None:
            self.reserved[device] = max(reserved, self.reserved.get(device, 0))


class _Source(Protocol):
    """Where peaks come from."""

    def start(self) -> None:
        """Begin to follow the allocator."""

    def stop(self) -> None:
        """End that."""

    def cut(self, regions: list[Peaks]) -> None:
        """Raise the peaks of open regions to the highest since the last cut, and begin anew."""

    def begin(self, region: Peaks) -> None:
        """Give a region that begins what is allocated now."""


class Allocator:
    """Follow the allocators of a rank's devices."""

    def __init__(self, device: str, *, on_cpu: bool) -> None:
        """Follow CUDA's where `device` is one, the CPU's only where `on_cpu` asks for it."""
        self._sources: list[_Source] = [_Profiled()] if on_cpu else []
        if device.startswith("cuda"):
            self._sources.append(_Cuda(device))
        self._open: list[Peaks] = []

    @property
    def follows(self) -> bool:
        """Tell whether any allocator is followed."""
        return bool(self._sources)

    def start(self) -> None:
        """Begin to follow the allocators."""
        for source in self._sources:
            source.start()

    def stop(self) -> None:
        """Follow them no more."""
        for source in self._sources:
            source.stop()

    def open(self) -> Peaks:
        """Begin a region; what is allocated now is its first peak."""
        self._cut()
        region = Peaks()
        for source in self._sources:
            source.begin(region)
        self._open.append(region)
        return region

    def close(self, region: Peaks) -> Peaks:
        """End a region and return its peaks."""
        self._cut()
        self._open.remove(region)
        return region

    def _cut(self) -> None:
        for source in self._sources:
            source.cut(self._open)


class _Profiled:
    """The CPU allocator's events, in stretches: a profile can only be read when it has ended."""

    def __init__(self) -> None:
        self._profile: Any = None
        self._total = 0

    def start(self) -> None:
        if profiler_runs():
            raise UsageError(f"allocated=: {_IN_THE_WAY}")
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile.start()

    def stop(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def cut(self, regions: list[Peaks]) -> None:
        torch.empty(1, dtype=torch.uint8)  # one byte more, one byte less: the last two events
        self._profile.stop()
        totals = [total for _, total in sorted(allocation_totals(self._profile))]
        if len(totals) < _LAST or totals[-_LAST] != totals[-1] + 1:
            raise UsageError(f"allocated=: {_IN_THE_WAY}")
        highest = max([self._total, *totals[:-_LAST]])
        self._total = totals[-1]
        self.start()
        for region in regions:
            region.raise_to("cpu", highest)

    def begin(self, region: Peaks) -> None:
        region.raise_to("cpu", self._total)


class _Cuda:
    """The caching allocator's statistics of one device."""

    def __init__(self, device: str) -> None:
        self._device = device

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def cut(self, regions: list[Peaks]) -> None:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return  # a rank that has not used its GPU yet must not begin here
        torch.cuda.synchronize(self._device)
        allocated = torch.cuda.max_memory_allocated(self._device)
        reserved = torch.cuda.max_memory_reserved(self._device)
        for region in regions:
            region.raise_to(self._device, allocated, reserved)
        torch.cuda.reset_peak_memory_stats(self._device)

    def begin(self, region: Peaks) -> None:
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        reserved = torch.cuda.memory_reserved(self._device)
        region.raise_to(self._device, torch.cuda.memory_allocated(self._device), reserved)
