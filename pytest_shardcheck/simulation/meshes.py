"""Device meshes hold small tensors of rank numbers, whose values they read: those stay real."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Final

from torch.distributed import device_mesh

from .patches import on_real_tensors, replace

# What makes or reads those tensors. What only looks at sizes, as DTensor does at each operator,
# is left alone.
_METHODS: Final = (
    "__init__",
    "__getitem__",
    "_flatten",
    "_unflatten",
    "_get_all_submeshes",
    "from_group",
)


def install(stack: ExitStack) -> None:
    """Have meshes work on real tensors."""
    mesh: Any = device_mesh.DeviceMesh
    for name in _METHODS:
        if name == "from_group":
            replace(stack, mesh, name, lambda original: staticmethod(on_real_tensors(original)))
        elif hasattr(mesh, name):
            replace(stack, mesh, name, on_real_tensors)
    replace(stack, device_mesh, "init_device_mesh", on_real_tensors)
