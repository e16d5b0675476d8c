"""One region's peaks while it is open, and what was alive at them once it ends."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, TypeVar

from pytest_shardcheck.vocabulary.memory import (
    LIVE_CATEGORIES,
    Crossing,
    LiveBytes,
    TensorRecord,
)

from .blocks import COMMUNICATED, GIVEN, GRADIENT, Block, Device, Home, Ledger, Peak, Place
from .claims import Claim
from .surroundings import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .surroundings import Label, Line

_T = TypeVar("_T")
_WHOLE = ""  # the phase that stands for all of them
_MOST_RECORDS = 10

Kind = tuple[str, int, object, tuple[int, ...]]  # device, bytes, dtype, shape
# What a record has, not written yet: bytes, dtype, shape, category, the module's label, the line,
# and a framework's name.
Alike = tuple[int, object, tuple[int, ...], str, "Label | None", "Line | None", str]
Claimed = Mapping[Home, Claim]
_NOBODYS: Final = Claim("", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """What was alive in a region, by device, and in each of its phases, by device."""

    by_device: dict[str, LiveBytes] = field(default_factory=dict)
    phases: dict[str, dict[str, LiveBytes]] = field(default_factory=dict)


class Window:
    """A region while it is open: its peaks, of the whole and of each phase, by device."""

    def __init__(
        self, ceilings: Mapping[str, int], ledger: Ledger, phase: str, line: Line | None
    ) -> None:
        """Begin with what is alive now, in `phase`."""
        self.began = ledger.clock
        self.before = Counter(map(kind_of, ledger.alive()))
        self.crossings: dict[Device, Crossing] = {}
        self.step_ends: list[int] = []
        # What frameworks said of storages while the region ran: they may be gone when it ends.
        self.claimed: dict[Home, Claim] = {}
        self._ceilings = ceilings
        self._ledger = ledger
        self._peaks: dict[str, dict[Device, Peak]] = {}
        for stretch in (_WHOLE, phase):
            self._enter(stretch)
        for device in self._devices():
            self._cross(device, phase, Place(line=line))

    def all_peaks(self) -> Iterator[Peak]:
        """Yield the peaks of all devices and phases."""
        for peaks in self._peaks.values():
            yield from peaks.values()

    def peaks(self) -> Mapping[str, Mapping[Device, Peak]]:
        """Return the peaks by phase ("" is the whole) and device."""
        return self._peaks

    def turn(self, old: str, new: str) -> None:
        """Leave a phase and enter another."""
        self.end(old)
        self._enter(new)

    def end(self, phase: str) -> None:
        """Take down what is alive as the phase's end, and the region's so far."""
        for stretch in (_WHOLE, phase):
            for device in self._devices():
                self._peak(stretch, device).end = device.live

    def rise(self, phase: str, block: Block) -> None:
        """Take down a new peak of a block's device, if it is one; the block was allocated last."""
        device = block.device
        for stretch in (_WHOLE, phase):
            peak = self._peak(stretch, device)
            if device.live > peak.live:
                self._ledger.reached(peak, device.live)
        self._cross(device, phase, block.place)

    def threshold(self, device: Device, phase: str) -> int:
        """Return the live bytes above which `rise` has something to take down."""
        return min(self._peak(stretch, device).live for stretch in (_WHOLE, phase))

    def _enter(self, phase: str) -> None:
        for device in self._devices():
            peak = self._peaks.setdefault(phase, {}).get(device)
            if peak is None:
                peak = self._peaks[phase][device] = Peak(device.live, self._ledger.clock)
                self._ledger.reached(peak, device.live)
            elif device.live > peak.live:
                self._ledger.reached(peak, device.live)

    def _peak(self, phase: str, device: Device) -> Peak:
        """Return a peak; that of a device which the stretch began without begins at nothing."""
        peaks = self._peaks.setdefault(phase, {})
        if device not in peaks:
            peaks[device] = Peak(0, self.began)
        return peaks[device]

    def _devices(self) -> list[Device]:
        return [device for device in list(self._ledger.devices.values()) if device is not None]

    def _cross(self, device: Device, phase: str, place: Place) -> None:
        if device in self.crossings:
            return
        for name in (device.name, device.name.partition(":")[0]):
            ceiling = self._ceilings.get(name)
            if ceiling is not None and device.live > ceiling:
                self.crossings[device] = Crossing(
                    ceiling=ceiling,
                    live=device.live,
                    operator=str(place.operator),
                    module=_name_of(place),
                    phase=phase,
                    line=text_of(place.line),
                )
                return


def report(window: Window, ledger: Ledger, claimed: Claimed) -> Live:
    """Say what was alive in a window that has just ended."""
    phases = {
        phase: {
            device.name: _live_bytes(window, ledger, claimed, device, peak)
            for device, peak in peaks.items()
        }
        for phase, peaks in window.peaks().items()
    }
    whole = {
        device.name: replace(
            phases[_WHOLE][device.name],
            grown=_grown(window, ledger, claimed, device),
            first_crossing=window.crossings.get(device),
        )
        for device in window.peaks()[_WHOLE]
    }
    del phases[_WHOLE]
    return Live(by_device=whole, phases=phases)


def kind_of(block: Block) -> Kind:
    """Return what makes blocks alike."""
    return block.device.name, block.bytes, block.dtype, tuple(block.shape)


def _live_bytes(
    window: Window, ledger: Ledger, claimed: Claimed, device: Device, peak: Peak
) -> LiveBytes:
    alive = ledger.alive_at(peak, device)
    named = [(block, _category(block, window, claimed, peak.at)) for block in alive]
    at_peak = dict.fromkeys(LIVE_CATEGORIES, 0)
    for block, category in named:
        at_peak[category] += block.bytes
    return LiveBytes(
        start=peak.start,
        end=peak.end,
        peak=peak.live,
        at_peak={category: size for category, size in at_peak.items() if size},
        largest=_largest(named, claimed),
    )


def _category(block: Block, window: Window, claimed: Claimed, at: int) -> str:
    held, otherwise = categories_of(block, window.began, claimed)
    return held if held == otherwise or block.home.held_at(at) else otherwise


def categories_of(block: Block, began: int | None, claimed: Claimed) -> tuple[str, str]:
    """Return what a block is while autograd has it saved, and what it is otherwise.

    `began` is the clock at which the region began; None where there is none.
    """
    claim, _, _, taught = claimed.get(block.home, _NOBODYS)
    if taught or claim in ("parameters", "unsharded parameters"):
        return claim, claim
    if block.marks & GRADIENT:
        return "gradients", "gradients"
    if claim:
        return claim, claim
    if block.marks & COMMUNICATED:
        otherwise = "communication buffers"
    elif block.marks & GIVEN or (began is not None and block.born <= began):
        otherwise = "inputs"
    else:
        otherwise = "temporaries"
    return "saved activations", otherwise


def _grown(
    window: Window, ledger: Ledger, claimed: Claimed, device: Device
) -> tuple[TensorRecord, ...]:
    """Describe what is there in a larger number than at the start, the unclaimed ones first.

    A step that replaces its gradients leaves as many as it found; one that also keeps a copy of
    them leaves more, and the copy is what nobody claims.
    """
    alive = [block for block in ledger.alive() if block.device is device]
    more = Counter(map(kind_of, alive)) - window.before
    born = [block for block in alive if block.born > window.began]
    named = [(block, _category(block, window, claimed, ledger.clock)) for block in born]
    named.sort(key=lambda pair: pair[0].home in claimed or bool(pair[0].marks & GRADIENT))
    left: dict[Alike, list[int]] = {}
    for block, category in named:
        if more[kind_of(block)] > 0:
            more[kind_of(block)] -= 1
            step = 1 + bisect_left(window.step_ends, block.born)
            left.setdefault(alike_of(block, category, claimed), []).append(step)
    return tuple(
        record_of(alike, len(steps), tuple(dict.fromkeys(steps)))
        for alike, steps in _most(left).items()
    )


def _largest(named: Iterable[tuple[Block, str]], claimed: Claimed) -> tuple[TensorRecord, ...]:
    """Fold equal ones and return the largest, those that were born first leading.

    What is a good part of the peak is shown by one of its own at least: the gradients of many
    layers would leave no line for the temporaries beside them.
    """
    counts = Counter(alike_of(block, category, claimed) for block, category in named)
    by_size = sorted(counts, key=larger_first)
    bytes_of: Counter[str] = Counter()
    first_of: dict[str, Alike] = {}
    for alike in by_size:
        bytes_of[alike[3]] += alike[0] * counts[alike]
        first_of.setdefault(alike[3], alike)
    least = bytes_of.total() // _MOST_RECORDS
    shown = [first for category, first in first_of.items() if bytes_of[category] >= least]
    chosen = set(list(dict.fromkeys([*shown, *by_size]))[:_MOST_RECORDS])
    return tuple(record_of(alike, counts[alike]) for alike in by_size if alike in chosen)


def alike_of(block: Block, category: str, claimed: Claimed) -> Alike:
    """Return what makes blocks equal to a reader."""
    place = block.place
    name = claimed.get(block.home, _NOBODYS).name
    return block.bytes, block.dtype, tuple(block.shape), category, place.label, place.line, name


def _most(alike: Mapping[Alike, _T]) -> dict[Alike, _T]:
    return {one: alike[one] for one in sorted(alike, key=larger_first)[:_MOST_RECORDS]}


def larger_first(alike: Alike) -> int:
    """Sort by size, the largest first."""
    return -alike[0]


def record_of(alike: Alike, count: int = 1, steps: tuple[int, ...] = ()) -> TensorRecord:
    """Write down equal blocks."""
    size, dtype, shape, category, label, line, name = alike
    return TensorRecord(
        bytes=size,
        dtype=str(dtype).removeprefix("torch."),
        shape=tuple(map(int, shape)),
        category=category,
        module=label.name if label is not None else "",
        line=text_of(line),
        count=count,
        steps=steps,
        name=name,
    )


def _name_of(place: Place) -> str:
    return place.label.name if place.label is not None else ""
