"""What the ``shardcheck`` fixture hands to a test. Runs in a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_shardcheck.expectations import Expectation, check_world_sizes, judge_given
from pytest_shardcheck.instruments.regions import Measurement
from pytest_shardcheck.plugin.taking import take
from pytest_shardcheck.reports import explain
from pytest_shardcheck.snapshots.fields import Asked
from pytest_shardcheck.vocabulary.errors import (
    UnmetExpectationError,
    UsageError,
    hide_from_users,
)
from pytest_shardcheck.vocabulary.readings import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.worlds.rank import RankContext

__tracebackhide__ = hide_from_users


class Shardcheck:
    """Measures regions of a test, checks readings, and exchanges them between ranks."""

    def __init__(self, context: RankContext, sizes: Sequence[int], no_snapshots: str = "") -> None:
        """Speak for the rank of ``context``, in a test that runs at these world sizes.

        ``no_snapshots`` says why it may take none.
        """
        self._context = context
        self._sizes = sizes
        self._no_snapshots = no_snapshots
        self._meter = context.track()

    def measure(self, *watched: object, region: str = "step", **named: object) -> Measurement:
        """Return a region to enter with ``with``; it yields a measurement.

        Args:
            watched: Modules, optimizers, engines, pipeline stages and nested lists of them.
            region: The region's name; a repeated name makes occurrences.
            named: The same, each also kept as a subtotal in ``memory.parts``.

        Raises:
            UsageError: Something can't be watched.
        """
        return self._meter.measure(*watched, region=region, **named)

    def start(self, *watched: object, region: str = "step", **named: object) -> Measurement:
        """Open a region that ``stop()`` ends, for a loop that is not ours; see ``measure``."""
        return self._meter.start(*watched, region=region, **named)

    def watch(self, *things: object, **named: object) -> None:
        """Watch more things in the innermost open region; outside any, in the whole test."""
        self._meter.watch(*things, **named)

    def stop(self) -> Measurement:
        """End the region that ``start()`` opened last."""
        return self._meter.stop()

    def check(self, reading: Reading | Measurement, *expectations: Expectation) -> None:
        """Hold expectations against this rank's reading, as the markers would.

        Args:
            reading: What ``measure`` yielded, once its block has ended.
            expectations: Such as ``max_memory(state=4_210_752)`` from ``pytest_shardcheck``.

        Raises:
            UnmetExpectationError: With the marker's message.
            UsageError: No expectation was given, the block has not ended, or a ``world_size=``
                is none that the test runs at.
        """
        if not expectations or not all(isinstance(e, Expectation) for e in expectations):
            raise UsageError(
                f"shardcheck.check(reading, {', '.join(map(repr, expectations)) or 'nothing'}): "
                "expectations are accepted, such as pytest_shardcheck.max_memory(state=...); a "
                "pytest.mark belongs above the test"
            )
        frozen = _frozen(reading)
        spec = self._context.order.spec
        check_world_sizes(expectations, self._sizes)
        verdicts = judge_given(expectations, spec, {frozen.rank: [frozen]})
        if not all(verdict.met for verdict in verdicts):
            raise UnmetExpectationError(explain(verdicts, spec))

    def gather(self, reading: Reading | Measurement) -> list[Reading]:
        """Return the readings of all ranks, ordered by rank.

        Every rank must call it. They are exchanged through the session: no collective is issued.
        """
        deed = "called the shardcheck.gather()"
        readings = self._context.exchange(_frozen(reading).to_json(), deed)
        return [Reading.from_json(data) for data in readings]

    def snapshot(
        self,
        reading_or_value: object,
        name: str | None = None,
        only: str | Iterable[str] | None = None,
        exclude: str | Iterable[str] | None = None,
        tolerance: object = None,
    ) -> None:
        """Have the session hold this against what ``--snapshot-update`` recorded.

        It does so when all ranks have ended well. What they took under one name is one snapshot.

        Args:
            reading_or_value: What ``measure`` yielded, once its block has ended, or plain data.
            name: Of the snapshot in this test; by default the region's.
            only: Fields to keep, such as ``"peak"`` or ``"collectives.tp"``; all by default.
            exclude: Fields to leave out.
            tolerance: An amount, a share such as ``"1%"``, or a mapping from fields to either.
                Counts are exact unless a field names them.

        Raises:
            UsageError: syrupy is not there, or an argument is wrong.
        """
        if self._no_snapshots:
            raise UsageError(f"shardcheck.snapshot: {self._no_snapshots}")
        frozen = reading_or_value
        if isinstance(reading_or_value, Measurement):
            frozen = reading_or_value.reading
        take(self._context, frozen, name, Asked(only, exclude, tolerance))


def _frozen(reading: object) -> Reading:
    if isinstance(reading, Measurement):
        return reading.reading
    if not isinstance(reading, Reading):
        raise UsageError(
            f"{reading!r} is no reading; expected what `with shardcheck.measure(...) as reading:` "
            "yields, or its .reading"
        )
    return reading
