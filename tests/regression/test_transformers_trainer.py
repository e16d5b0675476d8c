"""transformers' Trainer owns the loop: a callback opens and closes the region of a step.

It wraps as Accelerate does: in DDP on the CPU, also where `fsdp` is asked for, which is for GPUs.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught

from pytest_shardcheck import collectives, max_memory, memory

# The Trainer imports DeepSpeed where it is installed, which warns of its own surroundings.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

WIDTH, INNER, LAYERS, VOCABULARY = 32, 64, 2, 64
# Embedding and head; four square matrices, three of the MLP and two norms a layer; the last norm.
LAYER = 4 * WIDTH * WIDTH + 3 * WIDTH * INNER + 2 * WIDTH
P = 4 * (2 * VOCABULARY * WIDTH + LAYERS * LAYER + WIDTH)
TENSORS = 2 + LAYERS * 9 + 1


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": torch.arange(8), "labels": torch.arange(8)}


def train(shardcheck, world, *, keep=None, use_cpu=True, **options):
    """Train for three optimizer steps and return the reading of the third."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
    )
    readings = []

    class Measure(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, model, optimizer, **_):
            if state.global_step == 2:
                shardcheck.start(model, optimizer)

        def on_step_end(self, args, state, control, **_):
            if keep is not None:
                keep.append(torch.ones(100))
            if state.global_step == 3:
                readings.append(shardcheck.stop())

    arguments = transformers.TrainingArguments(
        output_dir=str(world.tmp_path),
        max_steps=3,
        per_device_train_batch_size=2,
        use_cpu=use_cpu,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
        **options,
    )
    model = transformers.LlamaForCausalLM(config)
    transformers.Trainer(
        model=model, args=arguments, train_dataset=Data(), callbacks=[Measure()]
    ).train()
    return readings[0]


# AdamW keeps two moments and a step count a tensor. DDP calls once a bucket, and the model fits
# one; the Trainer asks once more for how many tokens all ranks have. It clears gradients before
# the step ends: `grads` are those that the optimizer met.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=P, grads=P, optimizer=2 * P + 4 * TENSORS, growth=0)
@pytest.mark.collectives(all_reduce=1, ignore=("all_gather", "broadcast"))
@pytest.mark.max_collectives(largest=P, phase="backward")
def test_a_step(shardcheck, world):
    train(shardcheck, world)


# One world for all: importing transformers takes longer than what is tested.
@pytest.mark.world_size(2)
def test_mistakes(shardcheck, world):
    once = collectives(all_reduce=1, ignore=("all_gather", "broadcast"))
    right = train(shardcheck, world, gradient_accumulation_steps=4)
    shardcheck.check(right, once, memory(growth=0))

    # Accelerate is told to reduce each micro-batch's gradients.
    each = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    wrong = train(shardcheck, world, gradient_accumulation_steps=4, accelerator_config=each)
    with caught("collectives(all_reduce)", "4", "backward"):
        shardcheck.check(wrong, once)

    wrong = train(shardcheck, world, keep=[])
    with caught("memory(growth)", "400 B", "test_transformers_trainer.py"):
        shardcheck.check(wrong, memory(growth=0))

    # Asked for FSDP, which Accelerate has for GPUs only, the state is whole on each rank.
    wrong = train(shardcheck, world, fsdp=True, fsdp_config={"version": 2})
    with caught("max_memory(state)", f"params {P:,} B"):
        shardcheck.check(wrong, max_memory(state=2 * P + 4 * TENSORS))


# At work it needs a GPU for each rank, and halves everything.
@pytest.mark.world_size(2, device="cuda")
@pytest.mark.max_memory(state=2 * P + 4 * TENSORS)
def test_fsdp(shardcheck, world):
    train(shardcheck, world, use_cpu=False, fsdp=True, fsdp_config={"version": 2})
