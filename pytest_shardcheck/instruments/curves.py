"""What was alive at each sample, by category, and which tensors were the largest then."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from pytest_shardcheck.vocabulary.memory import LIVE_CATEGORIES, TensorRecord

from .live_report import alike_of, categories_of, larger_first, record_of
from .samples import thinned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .blocks import Block
    from .live_report import Alike, Claimed

MOST_SAMPLES: Final = 1_200
_MOST_LARGEST: Final = 5
_Span = list[int]  # the tensor, its first and last sample, how many


class Moments(Protocol):
    """When samples were taken: by the ledger's clock, the operation and the time."""

    clocks: list[int]
    at: list[int]
    time_ns: list[int]
    needed: set[int]  # clocks whose samples stay


class Curves:
    """The memory of one rank, sample by sample, device by device."""

    def __init__(self, device: str) -> None:
        """Begin with no sample, and with the rank's own device."""
        self.at: list[int] = []
        self.time_ns: list[int] = []
        self.left_out = 0
        self._columns: dict[tuple[str, str], list[int]] = {}
        self._needed: set[int] = set()
        self._places: dict[Alike, int] = {}
        self._spans: dict[str, list[_Span]] = {device: []}
        self._last_span: dict[tuple[str, int], _Span] = {}

    def add(
        self,
        moments: Moments,
        blocks: Sequence[Block],
        places: range,
        began: int | None,
        claimed: Claimed,
    ) -> None:
        """Add samples.

        Args:
            moments: where samples are.
            blocks: everything that was alive at one of them.
            places: which of the samples.
            began: the clock at which their region began; None outside of any.
            claimed: what storages are.
        """
        if not places:
            return
        first = len(self.at)
        clocks = moments.clocks[places.start : places.stop]
        self.at += moments.at[places.start : places.stop]
        self.time_ns += moments.time_ns[places.start : places.stop]
        self._needed |= {first + at for at, clock in enumerate(clocks) if clock in moments.needed}
        changes: dict[tuple[str, str], list[int]] = {}
        counts: dict[tuple[str, Alike], Counter[int]] = {}
        for block in blocks:
            device = block.device.name
            for begin, end, category in _stretches(block, clocks, began, claimed):
                change = changes.setdefault((device, category), [0] * (len(clocks) + 1))
                change[begin] += block.bytes
                change[end] -= block.bytes
                count = counts.setdefault((device, alike_of(block, category, claimed)), Counter())
                count[begin] += 1
                count[end] -= 1
        self._append(first, changes, len(clocks))
        for device in {device for device, _ in counts}:
            runs = {
                alike: list(_runs(count))
                for (name, alike), count in counts.items()
                if name == device
            }
            self._add_largest(first, device, runs, len(clocks))
        if len(self.at) > 2 * MOST_SAMPLES + len(self._needed):
            self.settle()

    def settle(self) -> None:
        """Thin out what is there."""
        totals = [sum(column) for column in zip(*self._columns.values(), strict=True)]
        kept = thinned(
            self.at, totals.__getitem__ if totals else lambda _: 0, MOST_SAMPLES, self._needed
        )
        if len(kept) == len(self.at):
            return
        self.left_out += len(self.at) - len(kept)
        self.at = [self.at[place] for place in kept]
        self.time_ns = [self.time_ns[place] for place in kept]
        self._columns = {
            name: [column[place] for place in kept] for name, column in self._columns.items()
        }
        self._needed = {bisect_left(kept, place) for place in self._needed}
        self._last_span.clear()
        for device, spans in self._spans.items():
            moved = [
                [tensor, bisect_left(kept, first), bisect_right(kept, last) - 1, count]
                for tensor, first, last, count in spans
            ]
            self._spans[device] = [span for span in moved if span[1] <= span[2]]

    def memory(self) -> dict[str, dict[str, tuple[int, ...]]]:
        """Return the bytes of each sample, by device and category; what was never there is not."""
        memory: dict[str, dict[str, tuple[int, ...]]] = {device: {} for device in self._spans}
        for category in LIVE_CATEGORIES:
            for (device, name), column in self._columns.items():
                if name == category and any(column):
                    memory.setdefault(device, {})[category] = tuple(column)
        return memory

    def tensors(self) -> tuple[TensorRecord, ...]:
        """Return the tensors that `alive` speaks of."""
        return tuple(map(record_of, self._places))

    def alive(self) -> dict[str, tuple[tuple[int, ...], ...]]:
        """Return when tensors were among the largest, as `Timeline.alive` has it."""
        return {device: tuple(map(tuple, spans)) for device, spans in self._spans.items()}

    def _append(
        self, first: int, changes: Mapping[tuple[str, str], list[int]], length: int
    ) -> None:
        for name in changes:
            self._columns.setdefault(name, [0] * first)
        for name, column in self._columns.items():
            figure = 0
            for change in changes.get(name, [0] * length)[:length]:
                figure += change
                column.append(figure)

    def _add_largest(
        self, first: int, device: str, runs: Mapping[Alike, list[tuple[int, int, int]]], length: int
    ) -> None:
        """Keep of each sample the largest tensors, equal ones folded."""
        shown = [0] * length
        for alike in sorted(runs, key=larger_first):
            for begin, end, count in runs[alike]:
                if min(shown[begin:end]) < _MOST_LARGEST:
                    shown[begin:end] = [number + 1 for number in shown[begin:end]]
                    self._add_span(device, alike, first + begin, first + end - 1, count)
            if min(shown) >= _MOST_LARGEST:
                return

    def _add_span(self, device: str, alike: Alike, first: int, last: int, count: int) -> None:
        tensor = self._places.setdefault(alike, len(self._places))
        before = self._last_span.get((device, tensor))
        if before is not None and before[2] == first - 1 and before[3] == count:
            before[2] = last
            return
        span = self._last_span[device, tensor] = [tensor, first, last, count]
        self._spans.setdefault(device, []).append(span)


def _stretches(
    block: Block, clocks: Sequence[int], began: int | None, claimed: Claimed
) -> Iterator[tuple[int, int, str]]:
    """Yield from which sample to before which a block was what."""
    begin, end = bisect_left(clocks, block.born), bisect_left(clocks, block.died)
    if begin == end or not block.bytes:
        return
    held, otherwise = categories_of(block, began, claimed)
    if held == otherwise:
        yield begin, end, held
        return
    for since, until in _merged(block.home.holds or ()):
        first = max(begin, bisect_left(clocks, since))
        last = min(end, bisect_left(clocks, until))
        if first < last:
            if begin < first:
                yield begin, first, otherwise
            yield first, last, held
            begin = last
    if begin < end:
        yield begin, end, otherwise


def _merged(stretches: Iterable[Sequence[float]]) -> Iterator[tuple[float, float]]:
    """Yield stretches that don't overlap, in their order."""
    last: tuple[float, float] | None = None
    for since, until in sorted(map(tuple, stretches)):
        if last is not None and since <= last[1]:
            last = (last[0], max(last[1], until))
            continue
        if last is not None:
            yield last
        last = (since, until)
    if last is not None:
        yield last


def _runs(count: Counter[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (first, end, how many) from changes by place."""
    many, begin = 0, 0
    for place in sorted(count):
        if not count[place]:
            continue
        if many and place > begin:
            yield begin, place, many
        many += count[place]
        begin = place
