"""Measure the code that runs in ranks, where the session measures its own with coverage.py.

A rank never reaches an exit handler, so that it starts and saves its measurement itself, into a
file beside the session's, which pytest-cov combines at its end as it does those of xdist's workers.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator, Mapping
from typing import Any

_OPTIONS = ("run:branch", "run:source", "run:source_pkgs", "run:include", "run:omit")


def of_session() -> dict[str, Any] | None:
    """Return how the session measures itself, as plain data; None where it does not."""
    coverage = sys.modules.get("coverage")
    current = coverage.Coverage.current() if coverage is not None else None
    if current is None:
        return None
    return {
        "data_file": os.path.abspath(current.get_option("run:data_file")),
        "config_file": current.config.config_file or False,
        "options": {name: current.get_option(name) for name in _OPTIONS},
    }


@contextlib.contextmanager
def measured(wanted: Mapping[str, Any] | None) -> Generator[None]:
    """Measure the block as ``of_session`` described it, and save what was measured."""
    if wanted is None:
        yield
        return
    import coverage

    measurement = coverage.Coverage(
        data_file=wanted["data_file"], data_suffix=True, config_file=wanted["config_file"]
    )
    for name, value in wanted["options"].items():
        measurement.set_option(name, value)
    # A rank imports nothing anew: what was imported before is no reason to warn.
    silenced = ["no-data-collected", "module-not-measured", "module-not-imported"]
    measurement.set_option("run:disable_warnings", silenced)
    measurement.start()
    try:
        yield
    finally:
        measurement.stop()
        measurement.save()
