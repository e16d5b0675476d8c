"""Readings → a test's properties in a JUnit file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_shardcheck.reports.figures import region_lines

if TYPE_CHECKING:
    from pytest_shardcheck.vocabulary.records import WorldRecord

_NAMES: Final = {
    "shardcheck_peak_bytes": "peak",
    "shardcheck_state_bytes": "state",
    "shardcheck_collectives": "calls",
    "shardcheck_wire_bytes": "wire",
    "shardcheck_saved_bytes": "saved",
}


def properties(record: WorldRecord) -> dict[str, int]:
    """Return the largest of each figure over all ranks and regions; what was measured nowhere, not.

    So a dashboard that reads JUnit files has one line per test and figure to follow.
    """
    lines = region_lines(record)
    found: dict[str, int] = {}
    for name, attribute in _NAMES.items():
        figures = (getattr(line.figures, attribute) for line in lines)
        if known := [figure for figure in figures if figure is not None]:
            found[name] = max(known)
    return found
