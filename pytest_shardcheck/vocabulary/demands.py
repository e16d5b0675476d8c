"""What a test's markers need to be measured, as plain data that instruments understand."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """Name the most bytes that may be alive in a region (None: any) on a device (None: its own)."""

    bytes: int
    region: str | None = None
    device: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Say what one rank measures beyond what it always does.

    `ceilings` are those whose first crossing is wanted. `allocated` follows the allocator, which
    costs time. `saved` installs saved-tensor hooks also where the test body is the region.
    `timeline` records what happens, operation by operation.
    """

    ceilings: tuple[Ceiling, ...] = ()
    allocated: bool = False
    saved: bool = False
    timeline: bool = False

    def ceilings_in(self, region: str, device: str) -> dict[str, int]:
        """Return the smallest ceiling of each device in a region; `device` is the rank's own."""
        smallest: dict[str, int] = {}
        for ceiling in self.ceilings:
            if ceiling.region in (None, region):
                where = ceiling.device or device
                smallest[where] = min(ceiling.bytes, smallest.get(where, ceiling.bytes))
        return smallest
