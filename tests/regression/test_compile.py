"""torch.compile under DDP and FSDP2: the graph that runs is the compiled one, and so are figures.

"aot_eager" compiles forward and backward, and runs torch's operators: all is measured. Inductor's
kernels allocate behind the operators: live memory is refused by name, `allocated` has it.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from mistakes import caught
from models import m8, m8_batch
from steps import P, measure_third
from systems.compiled import Stack
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from pytest_shardcheck import collectives, max_memory, memory, saved_activations

INPUTS = 8 * 32 * 256 * 4  # a layer saves its input

# torch's own, while it compiles: it looks at `.grad` of whatever it meets.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Compiler:
    """Compile with "aot_eager", and count the runs of its graphs: 0 where all ran eagerly."""

    def __init__(self):
        self.runs = 0

    def __call__(self, graph, inputs):
        from torch._dynamo.backends.registry import lookup_backend

        compiled = lookup_backend("aot_eager")(graph, inputs)

        def run(*args):
            self.runs += 1
            return compiled(*args)

        return run


# The figures of eager DDP: its reducer calls from C++ whatever runs in between.
@pytest.mark.world_size(2)
@pytest.mark.memory(params=P, grads=P, optimizer=2 * P + 16 * 4, live=5 * P + 64)
@pytest.mark.memory(peak=11_084_868, growth=0)
@pytest.mark.max_memory(allocated=11_084_868 + 64)  # the allocator's own: a second source
@pytest.mark.collectives(all_reduce=2)
@pytest.mark.saved_activations(bytes=INPUTS, count=8)
def test_ddp(process_group, shardcheck):
    model, compiler = DistributedDataParallel(Stack()), Compiler()
    compiled = torch.compile(model, backend=compiler)
    measure_third(shardcheck, compiled, AdamW(model.parameters()))
    assert compiler.runs >= 3  # in each step


# 1,024 B below eager FSDP2: the graph sums a bias' gradient after the peak, which is where the
# weight's is made.
@pytest.mark.world_size(2, 4)
@pytest.mark.memory({2: 5_131_344 - 1_024, 4: 3_157_592 - 1_024}, growth=0)
@pytest.mark.max_memory(allocated={2: 5_131_344 - 960, 4: 3_157_592 - 960})
@pytest.mark.collectives(all_gather=16, reduce_scatter=8)
@pytest.mark.saved_activations(bytes=INPUTS)
def test_fsdp2(device_mesh, shardcheck):
    model, compiler = m8(), Compiler()
    for number, layer in enumerate(model):
        model[number] = torch.compile(layer, backend=compiler)
        fully_shard(model[number], mesh=device_mesh, reshard_after_forward=True)
    fully_shard(model, mesh=device_mesh, reshard_after_forward=True)
    measure_third(shardcheck, model, AdamW(model.parameters()))
    assert compiler.runs == 3 * 8  # each layer's graph, in each step


# A42, with torch's own way to run eagerly and say nothing: `.compile()` on a module of torch.nn,
# whose frames are never compiled. Each GELU saves its input; the graph keeps one, its own, and
# computes the others again.
@pytest.mark.world_size(2)
def test_compile_that_compiles_nothing(process_group, shardcheck):
    options = {"backend": "aot_eager_decomp_partition"}
    chain = nn.Sequential(*(nn.GELU() for _ in range(8)))
    right = torch.compile(chain, **options)
    expected = saved_activations(count=1, bytes=32 * 256 * 4)
    shardcheck.check(saved_by(shardcheck, right), expected)
    chain.compile(**options)
    with caught("8 tensors, 7 more", "by module: 0 32,768 B, 1 32,768 B, 2 32,768 B"):
        shardcheck.check(saved_by(shardcheck, chain), expected)


def saved_by(shardcheck, model):
    batch = m8_batch().requires_grad_()
    model(batch).sum().backward()
    with shardcheck.measure(model) as reading:
        model(batch).sum().backward()
    return reading


# DDP that wraps each compiled half averages each gradient twice: in the half's buckets and in its
# own. The compiled frame doesn't hide the call.
@pytest.mark.world_size(2)
def test_a_compiled_module_that_is_wrapped_twice(process_group, shardcheck):
    inner = DistributedDataParallel(nn.Linear(16, 16))
    twice = DistributedDataParallel(nn.Sequential(inner, nn.Linear(16, 16)))
    for model, calls in ((twice.module[1], 0), (inner, 1)):
        compiled = torch.compile(model, backend="aot_eager")
        with shardcheck.measure(model) as reading:
            compiled(torch.randn(4, 16)).sum().backward()
        shardcheck.check(reading, collectives(all_reduce=calls))
    compiled = torch.compile(twice, backend="aot_eager")
    with shardcheck.measure(twice) as reading:
        compiled(torch.randn(4, 16)).sum().backward()
    with caught("collectives(all_reduce)", "test_compile.py", "backward"):
        shardcheck.check(reading, collectives(all_reduce=1))


def softmax_both_ways(x):
    """Softmax of rows, then of columns: between the two kernels is a buffer of x's size."""
    return torch.softmax(torch.softmax(x, 1), 0).sum()


X = 512 * 512 * 4


# Inductor's own buffer is in `allocated`: x, what the first kernel makes for the second, and less
# than another of it. The counter never met that buffer, so what it has is no figure.
@pytest.mark.world_size(2)
@pytest.mark.max_memory(allocated=4 * X)
@pytest.mark.skipif(not shutil.which("g++"), reason="inductor compiles with a C++ compiler")
def test_inductor_is_judged_by_allocated(process_group, shardcheck):
    x = torch.randn(512, 512)
    with shardcheck.measure(region="eager") as eager, torch.no_grad():
        softmax_both_ways(x)
    shardcheck.check(eager, memory(peak=3 * X, tolerance="1%"))  # x and both results
    with shardcheck.measure(region="compiled") as reading, torch.no_grad():
        torch.compile(softmax_both_ways)(x)
    assert reading.memory.allocated > 1.9 * X
    with caught("max_memory(peak)", "inductor's compiled code ran", "judge allocated= instead"):
        shardcheck.check(reading, max_memory(peak="1 GB"))
    with caught("memory(growth)", "the counter can't see it"):
        shardcheck.check(reading, memory(growth=0))
