"""Kernels that allocate inside one operator: the counter's peak, the allocator's, and the gap.

No dispatch shows a workspace, so `peak` is what lives between operators, and `allocated` all of it.
The counter's figure follows from shapes; the allocator's from the kernel that the machine has.
"""

from __future__ import annotations

import pytest
import torch
from mistakes import caught
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pytest_shardcheck import max_memory, max_saved_activations

pytestmark = [
    pytest.mark.world_size(2),
    pytest.mark.max_memory(allocated="1 GB"),  # naming it follows the allocator
]


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 64, batch_first=True)

    def forward(self, batch):
        return self.lstm(batch)[0]


class Attends(nn.Module):
    def __init__(self, *, need_weights=False):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.need_weights = need_weights

    def forward(self, batch):
        return self.attention(batch, batch, batch, need_weights=self.need_weights)[0]


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(64, 192)

    def forward(self, batch):
        qkv = self.qkv(batch).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(*qkv, is_causal=True)


def convolution():
    return nn.Conv2d(8, 16, 3)


IMAGES, SERIES, TOKENS = (4, 8, 32, 32), (8, 32, 16), (4, 64, 64)


def third_step(shardcheck, model, shape):
    def step():
        model(torch.randn(shape)).sum().backward()

    step()
    step()
    with shardcheck.measure(model) as measurement:
        step()
    return measurement.reading


# The share of the allocator's peak that the counter sees. It never sees more.
@pytest.mark.parametrize(
    "case",
    [
        pytest.param((convolution, IMAGES, 0.4, 0.6), id="convolution"),
        pytest.param((Recurrent, SERIES, 0.7, 0.85), id="lstm"),
        pytest.param((Attends, TOKENS, 0.999, 1.0), id="attention"),
        pytest.param((Causal, TOKENS, 0.8, 0.95), id="causal-attention"),
    ],
)
def test_the_gap(case, process_group, shardcheck):
    build, shape, least, most = case
    memory = third_step(shardcheck, build(), shape).memory
    assert least <= memory.peak / memory.allocated <= most
    assert sum(memory.at_peak.values()) == memory.peak


# Weights of 16 x 8 x 3 x 3 and 16 and their gradients, 4 x 8 x 32 x 32 in, 4 x 16 x 30 x 30 out,
# the loss: 4 B each.
CONVOLUTION = 4 * (2 * (1_152 + 16) + 32_768 + 57_600 + 1)


@pytest.mark.memory(CONVOLUTION)
def test_a_ceiling_of_peak_knows_no_workspace(process_group, shardcheck):
    reading = third_step(shardcheck, convolution(), IMAGES)
    shardcheck.check(reading, max_memory(CONVOLUTION))
    with caught(
        "max_memory(allocated): the ceiling of 370,820 B",
        "the counter's peak: 370,820 B; kernels hold what is above it inside an operator",
        "230,400 B float32 [4, 16, 30, 30] temporaries, in Conv2d",
    ):
        shardcheck.check(reading, max_memory(allocated=CONVOLUTION))


# So what a step needs of the machine is the allocator's figure: this LSTM fits by what operators
# show, and not by what its kernel takes.
def test_a_ceiling_of_peak_knows_nothing_of_an_lstms_gates(process_group, shardcheck):
    reading = third_step(shardcheck, Recurrent(), SERIES)
    shown = reading.memory.peak
    shardcheck.check(reading, max_memory(shown))
    with caught(
        f"max_memory(allocated): the ceiling of {shown:,} B",
        f"the counter's peak: {shown:,} B; kernels hold what is above it inside an operator",
        "saved activations, in lstm at ",
    ):
        shardcheck.check(reading, max_memory(allocated=shown))


# Tokens in, queries, keys and values, attention's output, and a sum per head and query; 4 B each.
TOKEN = 4 * 64 * 64
FUSED = 4 * (TOKEN + 3 * TOKEN + TOKEN + 4 * 4 * 64)


@pytest.mark.saved_activations(bytes=FUSED)
def test_fused_attention_saves_no_matrix(process_group, shardcheck):
    third_step(shardcheck, Attends(), TOKENS)


# Who asks for the weights, as is the default, gets the matrix of all pairs: 4 x 4 x 64 x 64.
def test_attention_that_needs_its_weights_saves_the_matrix(process_group, shardcheck):
    wrong = third_step(shardcheck, Attends(need_weights=True), TOKENS)
    with caught("the ceiling of 331,776 B", "by module: attention"):
        shardcheck.check(wrong, max_saved_activations(bytes=FUSED))
    assert wrong.saved.bytes >= FUSED - 4 * 4 * 4 * 64 + 4 * 4 * 4 * 64 * 64
