"""Where torch makes small tensors for itself and reads their values: there they stay real.

Device meshes hold rank numbers. DistributedDataParallel compares shapes between the ranks when it
is built, and the order of its gradients when it rebuilds its buckets; both in C++, whose tensors
are known by the Python function that called it.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType
from typing import Final

import torch
import torch.distributed.utils
from torch.distributed import _mesh_layout, device_mesh
from torch.nn.parallel import DistributedDataParallel

# These pass an operator on; the function that called it stands behind them.
_PASSING_ON: Final = (
    "/torch/_subclasses/",
    "/torch/utils/_stats.py",
    "/torch/_ops.py",
    "/torch/_compile.py",
    "/torch/_dynamo/eval_frame.py",
    "/torch/utils/_device.py",
    "/torch/overrides.py",
    "/pytest_shardcheck/",
)


class RealPlaces:
    """The functions whose tensors stay real, all of them or those of one dtype."""

    def __init__(self) -> None:
        """Look the functions up.

        Raises:
            AttributeError: This version of torch has others.
        """
        self._files = frozenset({device_mesh.__file__, _mesh_layout.__file__})
        # The function by which FSDP, too, is told that ranks agree is DDP's alone.
        self._codes: dict[CodeType, torch.dtype] = {
            torch.distributed.utils._verify_param_shape_across_processes.__code__: torch.int64,
            DistributedDataParallel._pre_forward.__code__: torch.int32,
            DistributedDataParallel._ddp_init_helper.__code__: torch.int32,
        }

    def makes(self, dtype: torch.dtype | None) -> bool:
        """Tell whether a new tensor of this dtype, made by the code that runs now, stays real."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and any(part in frame.f_code.co_filename for part in _PASSING_ON):
            frame = frame.f_back
        if frame is None:
            return False
        code = frame.f_code
        return code.co_filename in self._files or (
            dtype is not None and self._codes.get(code) == dtype
        )
