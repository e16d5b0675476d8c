"""M8 and Net16 under FSDP1 and FSDP2, with the mistakes that are made in wrapping them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from models import Net16, m8
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def fsdp2_m8(mesh: DeviceMesh, *, layers: bool = True, root: bool = True, **options: Any) -> Any:
    """Shard each layer of M8, and the root, which has no parameters of its own."""
    model = m8()
    for unit in (*(model if layers else ()), *((model,) if root else ())):
        fully_shard(unit, mesh=mesh, **options)
    return model


def fsdp2_net16(mesh: DeviceMesh, *, root: bool = True, **root_options: Any) -> Any:
    """Shard three blocks of Net16, and the root, which has two matrices of its own."""
    model = Net16()
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh, **root_options) if root else model


def fsdp1_m8(
    strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD, *, layers: bool = True, **options: Any
) -> FullyShardedDataParallel:
    """Wrap each layer of M8, and the root; or make all of it one flat unit."""
    return FullyShardedDataParallel(
        m8(),
        sharding_strategy=strategy,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}) if layers else None,
        device_id="cpu",
        **options,
    )
