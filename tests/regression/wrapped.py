"""A model and its optimizer, wrapped as people wrap them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

if TYPE_CHECKING:
    from torch import nn


def ddp(model: nn.Module, _: Any = None) -> Any:
    model = DistributedDataParallel(model)
    return model, AdamW(model.parameters())


def zero1(model: nn.Module, _: Any = None) -> Any:
    model = DistributedDataParallel(model)
    return model, ZeroRedundancyOptimizer(model.parameters(), AdamW)


def fsdp2(model: Any, mesh: Any, *, reshard: bool = True) -> Any:
    for layer in [*model, model]:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return model, AdamW(model.parameters())
