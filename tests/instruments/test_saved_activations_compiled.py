"""torch.compile under our hooks: it compiles what it would, and its saved tensors are seen."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from pytest_shardcheck.instruments.saved_activations import SavedActivations
from pytest_shardcheck.instruments.surroundings import Surroundings

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning"
)

BLOCKS, BATCH, WIDTH = 3, 8, 16


@pytest.fixture
def compiler():
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counters.clear()
    yield CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()


@pytest.fixture
def saved():
    # Not started: its own hooks are another matter.
    return SavedActivations(Surroundings())


def measured(saved, body):
    window = saved.open()
    try:
        body()
    finally:
        reading = saved.close(window)
    return reading


@pytest.fixture
def model():
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(BLOCKS)
        )
    )


@pytest.fixture
def x():
    return torch.randn(BATCH, WIDTH)


@pytest.mark.parametrize("warm", [True, False], ids=["compiled before", "compiled in the region"])
def test_a_compiled_graph_is_one_graph_and_seen(saved, model, x, compiler, warm):
    compiled = torch.compile(model, backend=compiler)
    if warm:
        compiled(x).sum().backward()
    for _ in range(2):
        reading = measured(saved, lambda: compiled(x).sum().backward())
        assert reading.bytes == 20 * BLOCKS * BATCH * WIDTH
        # Weights are left out, though a compiled graph saves aliases of them that are no views.
        assert reading.count == 2 * BLOCKS
    compiled(x).sum().backward()
    assert not counters["graph_break"]
    if warm:
        assert compiler.frame_count == 1  # the very graph that runs outside of a region
    else:
        # torch guards on global module hooks, of which ours is one: the same graph once more.
        assert compiler.frame_count <= 3


def test_a_checkpoint_in_a_compiled_graph(saved, model, x, compiler):
    @torch.compile(backend=compiler)
    def forward(x):
        for block in model:
            x = checkpoint(block, x, use_reentrant=False)
        return x

    reading = measured(saved, lambda: forward(x).sum().backward())
    # The compiler decides what is recomputed, and how: inside its own backward, unseen.
    assert reading.at_forward_end == BLOCKS * BATCH * WIDTH * 4
    assert compiler.frame_count == 1


def test_a_checkpoint_around_compiled_graphs(saved, model, x, compiler):
    blocks = [torch.compile(block, backend=compiler) for block in model]

    def step():
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        y.sum().backward()

    step()
    reading = measured(saved, step)
    inputs, inside = BLOCKS * BATCH * WIDTH * 4, 4 * BATCH * WIDTH * 4
    assert (reading.at_forward_end, reading.bytes) == (inputs, inputs + inside)


def test_hooks_in_compiled_code_break_it_no_more_than_without_us(saved, model, x, compiler):
    def forward(x):
        with saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            return model(x)

    torch.compile(forward, backend=compiler)(x).sum().backward()
    without, compiler.frame_count = compiler.frame_count, 0
    torch._dynamo.reset()
    measured(saved, lambda: torch.compile(forward, backend=compiler)(x).sum().backward())
    assert compiler.frame_count == without


def test_a_transform_in_compiled_code_works(saved, x, compiler):
    @torch.compile(backend=compiler)
    def forward(x):
        return torch.func.grad(lambda y: (y * y).sum())(x)

    results = []
    measured(saved, lambda: results.append(forward(x)))
    assert torch.equal(results[0], 2 * x)
    assert torch.equal(forward(x), 2 * x)
