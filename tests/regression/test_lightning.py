"""Lightning's Trainer owns the loop: it finds our variables, and a callback opens and closes.

Its `fsdp` strategy refuses the CPU by name; `ModelParallelStrategy` is FSDP2 and runs there.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from models import m8
from steps import P
from torch.distributed.fsdp import fully_shard
from torch.optim import AdamW

from pytest_shardcheck import collectives, max_memory, memory

# Lightning's use of torch's pytrees, and what it thinks of our machine.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*Consider increasing the value of the `num_workers`"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
]

MOMENTS = 16 * 4  # AdamW's step counts; its moments are 2 P


def module_of(lightning, *, shard, keep):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = m8()

        def configure_model(self):
            for layer in [*self.model, self.model] if shard else ():
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, _):
            loss = self.model(batch).sum()
            if keep is not None:
                keep.append(loss)
            return loss

        def configure_optimizers(self):
            return AdamW(self.parameters())

    return Module()


def fit(shardcheck, world, strategy, *, shard=False, keep=None):
    """Fit M8 and return the reading of the third step, up to where the fourth begins."""
    lightning = pytest.importorskip("lightning")
    readings = []

    class Measure(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if batch_idx == 2:
                shardcheck.start(module, trainer.optimizers)
            if batch_idx == 3:
                readings.append(shardcheck.stop())

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=world.size,
        strategy=strategy,
        max_epochs=1,
        limit_train_batches=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Measure()],
        default_root_dir=world.tmp_path,
    )
    rows = torch.utils.data.DataLoader(torch.randn(32 * 4 * world.size, 256), batch_size=32)
    trainer.fit(module_of(lightning, shard=shard, keep=keep), rows)
    return readings[0]


# What DDP has. Before each batch Lightning's rank 0 tells the others whether it was asked to end:
# one broadcast of 8 B.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=P, grads=P, optimizer=2 * P + MOMENTS, growth=0)
@pytest.mark.collectives(all_reduce=2, broadcast=1)
@pytest.mark.saved_activations(bytes=8 * 32 * 256 * 4, count=8)
def test_ddp(shardcheck, world):
    fit(shardcheck, world, "ddp")


# What FSDP2 has.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=P // 2, grads=P // 2, optimizer=P + MOMENTS, growth=0)
@pytest.mark.collectives(all_gather=16, reduce_scatter=8, broadcast=1)
def test_fsdp2(shardcheck, world):
    strategy = sharding(world)
    fit(shardcheck, world, strategy, shard=True)


def sharding(world):
    pytest.importorskip("lightning")
    from lightning.pytorch.strategies import ModelParallelStrategy

    return ModelParallelStrategy(data_parallel_size=world.size, tensor_parallel_size=1)


# One world for all: importing Lightning takes longer than what is tested.
@pytest.mark.world_size(2)
def test_mistakes(shardcheck, world):
    # The strategy shards nothing by itself: `configure_model` has to.
    wrong = fit(shardcheck, world, sharding(world))
    half = 2 * P + MOMENTS
    with caught("max_memory(state)", f"params {P:,} B", f"optimizer {2 * P + MOMENTS:,} B"):
        shardcheck.check(wrong, max_memory(state=half))
    # And without DDP nobody averages gradients.
    with caught("collectives(all_reduce)"):
        shardcheck.check(wrong, collectives(all_reduce=2, broadcast=1))

    wrong = fit(shardcheck, world, "ddp", keep=[])
    with caught("memory(growth)", "4 B", "test_lightning.py"):
        shardcheck.check(wrong, memory(growth=0))
