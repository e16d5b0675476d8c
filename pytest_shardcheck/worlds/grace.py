"""How long the other ranks have once one is in trouble. Runs in the session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from pytest_shardcheck.worlds import clock, watchdog

# After a failure the others have until they are quiet for this long: a rank that waits for a peer
# sleeps, one that is about to fail the same way runs.
QUIET_S: Final = 0.25
# A rank that keeps computing is stopped all the same: the test has failed already.
_GRACE_S: Final = 5.0
# A rank alone in skipping may be early: its peers are stopped only when they do nothing at all.
LONE_SKIP_QUIET_S: Final = 2.0


class Grace:
    """Measures how long the ranks that live have been quiet since a failure was known."""

    def __init__(self, pids: Mapping[int, int]) -> None:
        """Watch ranks by their process ids."""
        self._pids = pids
        self._began: float | None = None
        self._quiet_since = 0.0
        self._cpu: dict[int, int | None] = {}

    def is_over(self, alive: Iterable[int], quiet_s: float) -> bool:
        """Tell whether these ranks have all slept for ``quiet_s``, or one has run for too long."""
        now = clock.now()
        if self._began is None:
            self._began = self._quiet_since = now
        pids = [self._pids[rank] for rank in alive]
        cpu = {pid: watchdog.cpu_time_ns(pid) for pid in pids}
        if cpu != self._cpu or not all(watchdog.is_waiting(pid) for pid in pids):
            self._quiet_since, self._cpu = now, cpu
        capped = quiet_s == QUIET_S and now - self._began > _GRACE_S
        return capped or now - self._quiet_since > quiet_s
