"""Where torch makes small tensors for itself and reads their values: there they stay real.

Device meshes hold rank numbers, object collectives pickles, pipelines vote on how to run.
DistributedDataParallel compares shapes between the ranks when it is built, and the order of its
gradients when it rebuilds its buckets; both in C++, whose tensors are known by the Python function
that called it.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch
import torch.distributed.utils
from torch.distributed import device_mesh, distributed_c10d
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
_OBJECTS: Final = (
    distributed_c10d.all_gather_object,
    distributed_c10d.broadcast_object_list,
    distributed_c10d.gather_object,
    distributed_c10d.recv_object_list,
    distributed_c10d.scatter_object_list,
    distributed_c10d.send_object_list,
)
# By name: to import pipelines takes a second that nobody without them should pay.
_PIPELINES: Final = "/torch/distributed/pipelining/stage.py"
_VOTES: Final = ("_warmup_forward_vote", "_warmup_backward_result")


class RealPlaces:
    """The functions whose tensors stay real, all of them or those of one dtype."""

    def __init__(self) -> None:
        """Look the functions up.

        Raises:
            AttributeError: This version of torch has others.
        """
        # By name: older versions of torch have no layouts.
        layout = Path(device_mesh.__file__).with_name("_mesh_layout.py")
        self._files = frozenset({device_mesh.__file__, str(layout)})
        self._codes: dict[CodeType, torch.dtype | None] = {
            **dict.fromkeys(map(_code_of, _OBJECTS)),
            torch.distributed.utils._verify_param_shape_across_processes.__code__: torch.int64,
            DistributedDataParallel._pre_forward.__code__: torch.int32,
            DistributedDataParallel._ddp_init_helper.__code__: torch.int32,
            DistributedDataParallel._set_static_graph.__code__: torch.int32,
        }

    def makes(self, dtype: torch.dtype | None) -> bool:
        """Tell whether a new tensor of this dtype, made by the code that runs now, stays real."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and any(part in frame.f_code.co_filename for part in _PASSING_ON):
            frame = frame.f_back
        if frame is None:
            return False
        code = frame.f_code
        if code.co_filename in self._files:
            return True
        if code.co_name in _VOTES and code.co_filename.endswith(_PIPELINES):
            return True
        return code in self._codes and self._codes[code] in (None, dtype)


def _code_of(function: Any) -> CodeType:
    code: CodeType = inspect.unwrap(function).__code__
    return code
