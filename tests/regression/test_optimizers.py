"""Optimizers: what they keep, and what a step has beside it at its peak.

M8 has P = 2,105,344 B of fp32 parameters in 16 tensors, the largest of W = 262,144 B. Gradients are
cleared at the end of a step, so forward begins with parameters and optimizer state alone.
"""

from __future__ import annotations

import pytest
from mistakes import caught
from models import m8, m8_batch
from steps import P
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.optim import SGD, Adafactor, AdamW

from pytest_shardcheck import expect, max_memory, memory

W = 256 * 256 * 4
ROW = 256 * 4  # a bias, or a row of a weight
X = 32 * 256 * 4  # the batch, and each layer's output
MOMENTS = 2 * P + 16 * 4  # AdamW: two moments, and a step count per tensor
FACTORS = 8 * (2 * ROW + 4) + 8 * (ROW + 4)  # Adafactor: a row and a column of a weight, 4 B a step
# Forward: the batch, eight outputs and the loss.
FORWARD = 9 * X + 4
# Backward of the first layer: its input, its output's gradient; the loss and its gradient.
BACKWARD = 2 * X + 8

pytestmark = pytest.mark.world_size(2)


def third_step(shardcheck, model, optimizer, *, set_to_none=True, batch=m8_batch):
    def step():
        model(batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)

    step()
    step()
    with shardcheck.measure(model, optimizer) as measurement:
        step()
    return measurement.reading


def case(name, kind, *, state, peak, **options):
    return pytest.param((kind, options, state, peak), id=name)


# What a step adds to parameters, gradients and state. AdamW takes the root of the second moment:
# foreach of all at once, a loop of one weight (and its quotient; the last bias's is still named).
# Fused and SGD work in place, so their peak is in backward.
@pytest.mark.parametrize(
    "case",
    [
        case("adamw-foreach", AdamW, foreach=True, state=MOMENTS, peak=P),
        case("adamw-loop", AdamW, foreach=False, state=MOMENTS, peak=2 * W + ROW),
        case("adamw-fused", AdamW, fused=True, state=MOMENTS, peak=BACKWARD),
        case("sgd-momentum", SGD, lr=0.1, momentum=0.9, state=P, peak=BACKWARD),
        case("sgd-foreach", SGD, lr=0.1, momentum=0.9, foreach=True, state=P, peak=BACKWARD),
        # The update of a weight, means of its rows and columns and of all, two of the last bias.
        case("adafactor", Adafactor, state=FACTORS, peak=W + 4 * ROW + 4),
        case("adafactor-foreach", Adafactor, foreach=True, state=FACTORS, peak=P),
    ],
)
@pytest.mark.memory(params=P, grads=P, growth=0)
@pytest.mark.collectives
def test_what_a_step_adds(case, process_group, shardcheck):
    kind, options, state, peak = case
    model = m8()
    reading = third_step(shardcheck, model, kind(model.parameters(), **options))
    shardcheck.check(reading, memory(optimizer=state, peak=2 * P + state + peak))
    shardcheck.check(reading, memory(peak=P + state + FORWARD, phase="forward"))


# The ceiling of a loop: foreach's roots of all second moments are a second copy of the model.
def test_foreach_has_a_copy_of_the_model_at_the_peak(process_group, shardcheck):
    ceiling = max_memory(peak_above_start=P + 2 * W + ROW)  # gradients, and a weight's temporaries
    model = m8()
    right = third_step(shardcheck, model, AdamW(model.parameters(), foreach=False))
    shardcheck.check(right, ceiling)
    wrong = third_step(shardcheck, model, AdamW(model.parameters(), foreach=True))
    with caught(
        "at the peak: ", "temporaries 2,105,344 B", "8 x 262,144 B float32 [256, 256] temp"
    ):
        shardcheck.check(wrong, ceiling)


# Decay that is added to gradients is a new list of them; AdamW's is decoupled, and in place.
def test_foreach_weight_decay_of_sgd_copies_the_gradients(process_group, shardcheck):
    model = m8()
    options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    loop = third_step(shardcheck, model, SGD(model.parameters(), foreach=False, **options))
    shardcheck.check(loop, max_memory(peak=3 * P + W + ROW, phase="optimizer"))
    foreach = third_step(shardcheck, model, SGD(model.parameters(), foreach=True, **options))
    with caught("temporaries 2,105,344 B"):
        shardcheck.check(foreach, max_memory(peak=3 * P + W + ROW, phase="optimizer"))


def test_zeroed_gradients_live_through_forward(process_group, shardcheck):
    model = m8()
    optimizer = AdamW(model.parameters())
    ceiling = max_memory(peak=P + MOMENTS + FORWARD, phase="forward")
    shardcheck.check(third_step(shardcheck, model, optimizer), ceiling)
    with caught("2,105,344 B (31.8 %) above", "gradients 2,105,344 B"):
        shardcheck.check(third_step(shardcheck, model, optimizer, set_to_none=False), ceiling)


# In backward


def steps_in_backward(model, *, clears=True):
    optimizers = {param: AdamW([param], foreach=False) for param in model.parameters()}

    def hook(param):
        optimizers[param].step()
        if clears:
            optimizers[param].zero_grad()

    for param in optimizers:
        param.register_post_accumulate_grad_hook(hook)
    return list(optimizers.values())


def third_backward(shardcheck, model, optimizers):
    for _ in range(2):
        model(m8_batch()).sum().backward()
    with shardcheck.measure(model, optimizers) as measurement:
        model(m8_batch()).sum().backward()
    return measurement.reading


# The last layer's weight: its gradient and two temporaries, beside seven inputs, one gradient of
# them, and the loss and its gradient. Without: 4 P + 2 W.
PEAK_IN_BACKWARD = P + MOMENTS + 3 * W + 8 * X + 8


@pytest.mark.memory(grads=W, growth=0, peak=PEAK_IN_BACKWARD)
def test_an_optimizer_in_backward_never_has_all_gradients(process_group, shardcheck):
    model = m8()
    reading = third_backward(shardcheck, model, steps_in_backward(model))
    assert reading.memory.at_peak["gradients"] == W


def test_an_optimizer_in_backward_that_forgets_to_clear(process_group, shardcheck):
    model = m8()
    wrong = third_backward(shardcheck, model, steps_in_backward(model, clears=False))
    with caught("memory(grads): 262,144 B", "2,105,344 B", "grads 2,105,344 B"):
        shardcheck.check(wrong, memory(grads=W))
    with caught("gradients 2,105,344 B"):
        shardcheck.check(wrong, max_memory(PEAK_IN_BACKWARD))


# FSDP2 calls the hooks of a shard when it has been reduced: a layer's weight and bias.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory(grads={2: W // 2, 4: W // 4}, growth=0)
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
def test_an_optimizer_in_backward_under_fsdp2(device_mesh, shardcheck):
    model = m8()
    for layer in [*model, model]:
        fully_shard(layer, mesh=device_mesh, reshard_after_forward=True)
    third_backward(shardcheck, model, steps_in_backward(model))


# Dtypes


HALF = expect.zero(stage=0, params=526_336, param_dtype="bfloat16", tensors=16)
MIXED = expect.zero(
    stage=0, params=526_336, param_dtype="bfloat16", moment_dtype="float32", tensors=16
)


def half_batch():
    return m8_batch().bfloat16()


def test_moments_have_the_parameters_dtype(process_group, shardcheck):
    model = m8().bfloat16()
    reading = third_step(shardcheck, model, AdamW(model.parameters()), batch=half_batch)
    shardcheck.check(reading, memory(optimizer=HALF.optimizer))  # P + 16 x 4 B
    with caught("4,210,752 B (4.2 MB) was expected", "2,105,408 B", "params 1,052,672 B"):
        shardcheck.check(reading, memory(optimizer=MIXED.optimizer))


# A model that turns to bf16 under its optimizer keeps fp32 momentum: as much as all else.
def test_momentum_that_was_made_in_fp32_stays(process_group, shardcheck):
    model = m8()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    third_step(shardcheck, model, optimizer)
    model.bfloat16()
    reading = third_step(shardcheck, model, optimizer, batch=half_batch)
    with caught("1,052,672 B (1.1 MB) was expected", "optimizer 2,105,344 B"):
        shardcheck.check(reading, memory(optimizer=P // 2))
    with caught("8 x 262,144 B float32 [256, 256] optimizer state"):
        shardcheck.check(reading, max_memory(2 * P))  # P / 2 each of three, and temporaries


# Loading casts a state to its parameter's dtype: fp32 moments come back as bf16.
def test_moments_are_cast_when_they_are_loaded(process_group, shardcheck):
    model = m8()
    optimizer = AdamW(model.parameters(), foreach=False)
    third_step(shardcheck, model, optimizer)
    model.bfloat16()
    optimizer.load_state_dict(optimizer.state_dict())
    reading = third_step(shardcheck, model, optimizer, batch=half_batch)
    with caught("4,210,752 B (4.2 MB) was expected", "2,105,408 B"):
        shardcheck.check(reading, memory(optimizer=MIXED.optimizer))


# FSDP1 makes one vector of a layer, and Adafactor factors no vector: half a moment for the factors.
def test_adafactor_keeps_whole_moments_of_flat_parameters(process_group, shardcheck):
    model = nn.Sequential(*(FullyShardedDataParallel(layer, device_id="cpu") for layer in m8()))
    wrong = third_step(shardcheck, model, Adafactor(model.parameters()))
    with caught("24,640 B (24.6 kB) was expected", f"optimizer {P // 2 + 8 * 4:,} B"):
        shardcheck.check(wrong, memory(optimizer=FACTORS))
