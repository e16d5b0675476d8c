"""What kernels refuse for its dtypes, a simulated world refuses; what they take, it takes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from pytest_shardcheck.simulation.dtypes import _ASKED, Dtypes

DTYPES = [torch.float32, torch.bfloat16, torch.int64]
aten = torch.ops.aten
VECTOR, MATRIX, BATCH = torch.rand(4), torch.rand(4, 4), torch.rand(2, 4, 4)
IMAGES, CHANNELS = torch.rand(2, 4, 6, 6), torch.rand(4, 2, 3, 3)
PLACES = torch.tensor([0, 3, 1, 2])
NORM = (VECTOR, VECTOR, VECTOR, VECTOR)

CALLS = {
    aten.mm: (MATRIX, MATRIX),
    aten.addmm: (VECTOR, MATRIX, MATRIX),
    aten.addmm_: (MATRIX, MATRIX, MATRIX),
    aten.addbmm: (MATRIX, BATCH, BATCH),
    aten.baddbmm: (BATCH, BATCH, BATCH),
    aten.bmm: (BATCH, BATCH),
    aten.mv: (MATRIX, VECTOR),
    aten.addmv: (VECTOR, MATRIX, VECTOR),
    aten.dot: (VECTOR, VECTOR),
    aten.vdot: (VECTOR, VECTOR),
    # Whether a bias of another dtype is refused depends on which library convolves.
    aten.convolution: (IMAGES, CHANNELS, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 2),
    aten.native_layer_norm: (BATCH, [4, 4], MATRIX, MATRIX, 1e-5),
    aten.native_group_norm: (IMAGES, VECTOR, VECTOR, 2, 4, 36, 2, 1e-5),
    aten.native_batch_norm: (IMAGES, *NORM, True, 0.1, 1e-5),
    aten._native_batch_norm_legit: (IMAGES, *NORM, True, 0.1, 1e-5),
    aten._batch_norm_with_update: (IMAGES, *NORM, 0.1, 1e-5),
    aten.nll_loss_forward: (MATRIX, PLACES, VECTOR, 1, -100),
    aten.nll_loss2d_forward: (IMAGES, PLACES[:2].view(2, 1, 1).expand(2, 6, 6), VECTOR, 1, -100),
    aten.binary_cross_entropy: (MATRIX, MATRIX, MATRIX),
    aten.index_put: (MATRIX, [PLACES], MATRIX),
    aten.index_put_: (MATRIX, [PLACES], MATRIX),
    aten.index_add: (MATRIX, 0, PLACES, MATRIX),
    aten.index_add_: (MATRIX, 0, PLACES, MATRIX),
    aten.index_copy: (MATRIX, 0, PLACES, MATRIX),
    aten.index_copy_: (MATRIX, 0, PLACES, MATRIX),
    aten._prelu_kernel: (MATRIX, VECTOR),
}


def test_every_operator_is_called_here():
    assert {packet.default for packet in CALLS} == set(_ASKED)


@pytest.mark.parametrize("packet", CALLS, ids=str)
def test_as_the_kernel_says(packet):
    """In whole tensors of several elements, whatever the combination of dtypes."""
    args = CALLS[packet]
    floating = [n for n, one in enumerate(args) if is_floating(one)]
    outcomes = set()
    for dtypes in itertools.product(DTYPES, repeat=len(floating)):
        if len(dtypes) > 2 and len(set(dtypes)) > 2:
            continue
        given = list(args)
        for number, dtype in zip(floating, dtypes, strict=True):
            given[number] = given[number].to(dtype)
        refused = refuses(packet.default, clones(given))
        if refused is None or (refused and same_also_refused(packet.default, given, floating)):
            continue  # not for its dtypes
        outcomes.add(refused)
        assert (says(packet.default, given) == "") is not refused, (dtypes, refused)
    assert False in outcomes
    assert True in outcomes


def is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def clones(values):
    return tree_map(lambda one: one.clone() if isinstance(one, torch.Tensor) else one, values)


def refuses(func, args):
    """Tell whether the kernel raises; None where a CPU has none."""
    try:
        func(*args)
    except NotImplementedError:
        return None
    except (RuntimeError, IndexError):
        return True
    return False


def same_also_refused(func, args, floating):
    dtype = next((args[n].dtype for n in floating if is_floating(args[n])), None)
    same = [one.to(dtype) if n in floating and dtype else one for n, one in enumerate(args)]
    return dtype is None or refuses(func, clones(same)) is not False


def says(func, args):
    mode = FakeTensorMode()
    fakes = tree_map(lambda x: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x, args)
    with mode:
        try:
            Dtypes().check(func, fakes)
        except RuntimeError as error:
            return str(error)
    return ""


def test_the_message_is_the_kernels_with_the_line():
    message = says(aten.mm.default, (MATRIX, MATRIX.bfloat16()))
    with pytest.raises(RuntimeError) as kernels:
        torch.mm(MATRIX, MATRIX.bfloat16())
    assert message.startswith(f"{kernels.value} (aten.mm.default at ")
    assert "test_dtypes.py:" in message
