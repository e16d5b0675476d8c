"""The one place that reads the clock, so that a test can replace it."""

from __future__ import annotations

import time


def now() -> float:
    """Return monotonic seconds; comparable between the processes of one machine."""
    return time.monotonic()


def now_ns() -> int:
    """Return monotonic nanoseconds; comparable between the processes of one machine."""
    return time.monotonic_ns()
