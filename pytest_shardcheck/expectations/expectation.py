"""An expectation: a marker's arguments, parsed once. A new noun is a file and a line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_shardcheck.expectations.collectives import COLLECTIVES
from pytest_shardcheck.expectations.memory import MEMORY
from pytest_shardcheck.expectations.narrowing import Narrowing
from pytest_shardcheck.expectations.saved_activations import SAVED_ACTIVATIONS
from pytest_shardcheck.expectations.usage import Site

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_shardcheck.expectations.measure import Measure
    from pytest_shardcheck.expectations.values import Tolerance, Value

_CEILING = "max_"

_MEASURES = (MEMORY, COLLECTIVES, SAVED_ACTIVATIONS)

MEASURE_OF: dict[str, Measure] = {
    prefix + measure.noun: measure for measure in _MEASURES for prefix in ("", _CEILING)
}
MARKERS = tuple(MEASURE_OF)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Hold what one marker, or one call of its function, expects.

    `level` is how far the marker stands from the test: 0 at the function, 1 at its class, more
    beyond. `where` names the test or the call in messages.
    """

    marker: str
    values: Mapping[str, Value]
    narrowing: Narrowing
    tolerance: Tolerance
    level: int
    where: str

    @property
    def measure(self) -> Measure:
        """Return what the marker can judge."""
        return MEASURE_OF[self.marker]

    @property
    def site(self) -> Site:
        """Return what a usage error names."""
        return Site(self.where, self.marker)

    @property
    def exact(self) -> bool:
        """Return whether the values are exact; otherwise they are ceilings."""
        return not self.marker.startswith(_CEILING)
