# llama2.py
import torch
from transformers import LlamaConfig, LlamaForCausalLM

LAYERS = 80


def build():
    """Return Llama-2-70B, and what a step's forward gets."""
    config = LlamaConfig(
        hidden_size=8_192,
        intermediate_size=28_672,
        num_hidden_layers=LAYERS,
        num_attention_heads=64,
        num_key_value_heads=8,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    tokens = torch.zeros(1, 2_048, dtype=torch.long)
    return model, {"input_ids": tokens, "labels": tokens}
