"""Expectations → what a rank must measure for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_shardcheck.expectations.values import tolerance_of
from pytest_shardcheck.vocabulary.demands import Ceiling, Demands

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pytest_shardcheck.expectations.expectation import Expectation
    from pytest_shardcheck.vocabulary.specs import WorldSpec


def demands_of(expectations: Sequence[Expectation], spec: WorldSpec, rank: int) -> Demands:
    """Return what `rank` measures for expectations whose values are worked out."""
    concerned = [expectation for expectation in expectations if _judges(expectation, spec, rank)]
    return Demands(
        ceilings=tuple(_ceilings(concerned)),
        allocated=any("allocated" in expectation.values for expectation in concerned),
        saved=any(expectation.measure.noun == "saved_activations" for expectation in concerned),
    )


def _judges(expectation: Expectation, spec: WorldSpec, rank: int) -> bool:
    try:
        return rank in expectation.narrowing.select_ranks(spec)
    except LookupError:  # a narrowing that matches nothing is the verdict's to tell
        return False


def _ceilings(expectations: Iterable[Expectation]) -> Iterable[Ceiling]:
    for expectation in expectations:
        peak = expectation.values.get("peak")
        if isinstance(peak, int) and expectation.measure.noun == "memory":
            narrowing = expectation.narrowing
            yield Ceiling(
                bytes=peak + tolerance_of(peak, expectation.tolerance),
                region=narrowing.region,
                device=narrowing.device,
            )
