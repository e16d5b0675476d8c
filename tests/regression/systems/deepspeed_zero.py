"""Rows of DeepSpeed's ZeRO stages, over gloo on the CPU."""

from __future__ import annotations

import importlib
import warnings

import torch
from models import m8

from .base import System, Training

# Two layers of M8 x 65,792 numbers. The default of 5e8 is two gigabytes, whatever the model's size.
BUCKET = 131_584


def engine(stage, model, *, dtype=None, micro_batches=1, **zero):
    """Return a DeepSpeed engine of a model; `zero` is added to `zero_optimization`."""
    deepspeed = importlib.import_module("deepspeed")
    # Its all_reduce in shared memory is for inference only, and it would compile C++ at first use.
    # Its hooks on the first layer, whose input wants no gradient.
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    config = {
        "train_micro_batch_size_per_gpu": 32,
        "gradient_accumulation_steps": micro_batches,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, "reduce_bucket_size": BUCKET, **zero},
    }
    if dtype is not None:
        config[dtype] = {"enabled": True}
    made, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config
    )
    return made


def step(made):
    batch = torch.randn(32, 256)
    loss = made(batch).sum()
    made.backward(loss)
    made.step()


def built(stage, **zero):
    def build(_):
        made = engine(stage, m8(), **zero)
        return Training(step=lambda: step(made), watched=(made,))

    return build


# Stage 3 lets go of parameters only beyond so many numbers: by default beyond a thousand million.
RESHARDS = {
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,
}

SYSTEMS = [
    System(
        name=f"DeepSpeed, stage {stage}",
        page="deepspeed",
        build=built(stage, **(RESHARDS if stage == 3 else {})),
        packages=("deepspeed",),
        unsimulated="its step reads the norm of the gradients" if stage else "",
        # At four ranks the allocator's peak is where gloo gathers the stepped parameters, into a
        # copy of its own.
        share=(0.909, 1.001) if stage == 2 else (0.999, 1.001),
    )
    for stage in (0, 1, 2, 3)
]
