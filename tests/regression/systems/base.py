"""What the suite knows of a way to train: how it is built, and where its figures are explained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer


@dataclass(frozen=True, kw_only=True)
class Training:
    """A step that can be repeated, and what to watch while it is."""

    step: Callable[[], None]
    watched: tuple[object, ...]


@dataclass(frozen=True, kw_only=True)
class System:
    """One row of the generated tables: M8 trained in one way.

    `build` gets a mesh of one axis over the whole world; what needs more axes makes its own mesh.
    """

    name: str
    page: str  # docs/systems/<page>.md
    build: Callable[[DeviceMesh], Training]
    sizes: tuple[int, ...] = (2, 4)
    counted: bool = True  # whether CommDebugMode can follow it
    packages: tuple[str, ...] = ()  # what must be installed
    # Counter over allocator at the peak, (least, most), where a kernel has memory of its own.
    share: tuple[float, float] = (0.999, 1.001)
    # Of a simulated world: why it has none, or why its peak is not the real one's.
    unsimulated: str = ""
    other_peak: str = ""

    @property
    def id(self) -> str:
        """Return the name as a test id."""
        words = "".join(c if c.isalnum() else " " for c in self.name.lower())
        return "-".join(words.split())


def trained(model: nn.Module, optimizer: Optimizer) -> Training:
    """Train on a batch of 32; neither the batch nor the loss outlives a step."""

    def step() -> None:
        batch = torch.randn(32, 256)
        optimizer.zero_grad()
        loss = model(batch).sum()
        loss.backward()
        optimizer.step()

    return Training(step=step, watched=(model, optimizer))


def built(make: Callable[..., Any], **options: Any) -> Callable[[DeviceMesh], Training]:
    """Return a builder for `make(mesh, **options)`, which returns a model and an optimizer."""

    def build(mesh: DeviceMesh) -> Training:
        return trained(*make(mesh, **options))

    return build
