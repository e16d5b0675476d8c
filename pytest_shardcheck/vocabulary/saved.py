"""What autograd saved on one rank in one region: frozen, plain data. All sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedBytes:
    """Hold the largest of each figure at one time.

    `packed` counts every tensor that autograd held, parameters included; the others leave
    parameters and buffers out. `bytes` is the union of the byte ranges that saved tensors cover,
    `storage_bytes` the whole storages that they keep alive.
    """

    packed: int = 0
    count: int = 0
    bytes: int = 0
    storage_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedReading(SavedBytes):
    """Hold what autograd saved in a region.

    `at_forward_end` are the bytes held when backward began (the largest of several).
    `modules` is, at the moment of the most `bytes`, each module's share of them. `packs` counts
    all tensors that were packed, and `backward` tells whether autograd ran: where it did and
    nothing was packed, nothing was measured. `unseen` says what hid tensors from the hooks.
    """

    at_forward_end: int = 0
    modules: Mapping[str, int] = field(default_factory=dict)
    packs: int = 0
    backward: bool = False
    unseen: tuple[str, ...] = ()
    phases: Mapping[str, SavedBytes] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Tell whether the hooks saw what was saved: where they did not, a zero is no figure."""
        return not self.unseen and not (self.backward and not (self.packs or self.packed))
