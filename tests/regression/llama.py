"""Llama from a config, as large as nobody here could hold it, and one way to train it.

`LlamaForCausalLM` of transformers, whose layers are all alike: Llama-2-70B has 80. bf16 throughout,
activation checkpoints around each layer, FSDP2 over each layer and the root, AdamW; one sequence
of 2,048 tokens with its labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

HIDDEN, INTERMEDIATE, VOCABULARY, TOKENS = 8_192, 28_672, 32_000, 2_048
HEADS, KEY_VALUE_HEADS = 64, 8
# Of a layer: queries and outputs, keys and values, three of the MLP, two norms.
LAYER = 2 * HIDDEN**2 + 2 * HIDDEN * HIDDEN // 8 + 3 * HIDDEN * INTERMEDIATE + 2 * HIDDEN
REST = 2 * VOCABULARY * HIDDEN + HIDDEN  # embedding and head, and the last norm


def params(layers: int) -> int:
    """Return the number of parameters: 68,976,648,192 with 80 layers."""
    return layers * LAYER + REST


def llama(layers: int) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)  # of this rank's process, which ends with the test
    model = transformers.LlamaForCausalLM(config)
    model.activation_checkpointing_enable()
    return model


def sharded(layers: int, mesh: DeviceMesh, *, reshard: bool) -> Any:
    model = llama(layers)
    for layer in [*model.model.layers, model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()


def second(shardcheck: Any, model: Any, optimizer: Any) -> Any:
    """Take two steps and measure the second: the optimizer has its state then."""
    step(model, optimizer)
    with shardcheck.measure(model, optimizer) as measurement:
        step(model, optimizer)
    return measurement.reading
