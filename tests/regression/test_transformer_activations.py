"""What a GPT layer of Korthikanti et al. 2022 saves for backward: the paper's sums, measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import gelu
from torch.utils.checkpoint import checkpoint

from pytest_shardcheck.formulas import RECOMPUTATIONS
from pytest_shardcheck.plan import Transformer, transformer_activations

SHORT = Transformer(layers=3, hidden=64, heads=4, sequence=16, batch=2)
# Long enough that the scores of attention are most of it, as in GPT-3.
LONG = Transformer(layers=3, hidden=64, heads=4, sequence=128, batch=2)
# One of two GPUs with its part of each matrix, without the calls between them: these save nothing.
CUT = replace(LONG, tensor_parallel=2)
CUT_ALONG_SEQUENCE = replace(CUT, sequence_parallel=True)


def norms(gpt):
    """Return what a LayerNorm saves besides, its means and deviations: the paper leaves it out."""
    return 2 * 2 * sequence_of_a_gpu(gpt) * gpt.batch


def sequence_of_a_gpu(gpt):
    return gpt.sequence // (gpt.tensor_parallel if gpt.sequence_parallel else 1)


def dropout(x):
    # `nn.Dropout` saves a mask of the input's dtype on the CPU, this one a byte, as on a GPU.
    return torch.native_dropout(x, 0.1, True)[0]


class Gathered(torch.autograd.Function):
    """A linear layer of the whole sequence that saves its own part of it (section 4.2.2).

    Copies of the part stand in for those that an all_gather brings.
    """

    @staticmethod
    def forward(ctx, part, weight, bias, parts):
        ctx.save_for_backward(part, weight)
        ctx.parts = parts
        return nn.functional.linear(part.repeat(parts, 1, 1), weight, bias)

    @staticmethod
    def backward(ctx, grad):
        part, weight = ctx.saved_tensors
        whole = part.repeat(ctx.parts, 1, 1)
        to_part = (grad @ weight).chunk(ctx.parts)[0]
        return to_part, grad.flatten(0, 1).T @ whole.flatten(0, 1), grad.sum((0, 1)), None


class Layer(nn.Module):
    """A layer of the paper's figure 2."""

    def __init__(self, gpt, recomputation):
        super().__init__()
        h, t, self.heads = gpt.hidden, gpt.tensor_parallel, gpt.heads // gpt.tensor_parallel
        self.norms = nn.ModuleList(nn.LayerNorm(h) for _ in range(2))
        self.qkv, self.out = nn.Linear(h, 3 * h // t), nn.Linear(h // t, h)
        self.up, self.down = nn.Linear(h, 4 * h // t), nn.Linear(4 * h // t, h)
        self.parts = t if gpt.sequence_parallel else 1
        self.core = core
        if recomputation == "selective":
            self.core = partial(checkpoint, core, use_reentrant=False)

    def forward(self, x):
        whole = self.column(self.qkv, self.norms[0](x))
        s, b, _ = whole.shape
        # Each head's own copy, as three matrices would give it.
        heads = (part.contiguous() for part in whole.chunk(3, dim=-1))
        q, k, v = (part.view(s, b * self.heads, -1).transpose(0, 1) for part in heads)
        mixed = self.core(q, k, v).transpose(0, 1).reshape(s, b, -1)
        x = x + dropout(self.row(self.out, mixed))
        return x + dropout(self.row(self.down, gelu(self.column(self.up, self.norms[1](x)))))

    def column(self, linear, x):
        if self.parts == 1:
            return linear(x)
        return Gathered.apply(x, linear.weight, linear.bias, self.parts)

    def row(self, linear, x):
        return linear(x).chunk(self.parts)[0]  # what a reduce_scatter leaves


def core(q, k, v):
    scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5
    return torch.bmm(dropout(scores.softmax(-1)), v)


class Model(nn.Module):
    def __init__(self, gpt, recomputation):
        super().__init__()
        self.layers = nn.ModuleList(Layer(gpt, recomputation) for _ in range(gpt.layers))
        self.full = recomputation == "full"

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.full else layer(x)
        return x


@pytest.mark.parametrize(
    "gpt",
    [SHORT, LONG, CUT, CUT_ALONG_SEQUENCE],
    ids=["short", "long", "cut", "cut-along-sequence"],
)
@pytest.mark.world_size(1)
def test_the_papers_sums_are_what_is_saved(gpt, shardcheck):
    for recomputation in RECOMPUTATIONS:
        model = Model(gpt, recomputation).bfloat16()
        x = torch.randn(sequence_of_a_gpu(gpt), gpt.batch, gpt.hidden).bfloat16().requires_grad_()
        with shardcheck.measure(model, region=recomputation) as reading:
            model(x).backward(torch.ones_like(x))
        expected = transformer_activations(gpt, recomputation)
        stored, at_peak = _norms(recomputation, gpt, expected)
        assert reading.saved.at_forward_end == expected.stored + stored * norms(gpt)
        assert reading.saved.bytes == expected.peak + at_peak * norms(gpt)


def _norms(recomputation, gpt, expected):
    """Return of how many norms there is something at the end of forward, and at the peak."""
    both = 2 * gpt.layers
    if recomputation == "full":
        return 0, 2
    # The last MLP's backward is done before the scores of its layer are computed anew.
    return both, both - (1 if recomputation == "selective" and expected.recomputed else 0)
