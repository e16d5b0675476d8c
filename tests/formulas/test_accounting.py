"""What is kept for each parameter: the paper's 16 bytes, the usual accountings, wrong ones."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_shardcheck import UsageError
from pytest_shardcheck.formulas import BytesPerParameter, accounting


def sizes(**arguments: Any) -> dict[str, int]:
    return {one.name: one.size for one in accounting(**arguments).components}


def test_the_papers_sixteen_bytes_are_the_default() -> None:
    mixed = accounting()
    assert sizes() == {
        "weights": 2,
        "gradients": 2,
        "first moment": 4,
        "second moment": 4,
        "master copy": 4,
    }
    assert mixed.bytes_per_parameter == 16
    assert mixed.each == BytesPerParameter(param=2, grad=2, optimizer=12)  # K = 12


@pytest.mark.parametrize(
    ("arguments", "each", "name"),
    [
        ({"moments": "fp16", "master": None}, 8, "simple: all in 16 bits, no master copy"),
        (
            {"weights": "bf16", "master": None},
            12,
            "16-bit weights and gradients, fp32 moments, no master copy",
        ),
        ({}, 16, "mixed precision of the ZeRO paper"),
        ({"weights": "fp32"}, 16, "single precision"),
        ({"grads": "fp32"}, 18, "your own"),
        ({"optimizer": "sgd"}, 8, "your own"),
        # The sum of a usual one, from other parts.
        ({"moments": 1, "master": "fp16", "grads": 4}, 10, "your own"),
        ({"moments": "fp16", "master": "fp32"}, 12, "your own"),
    ],
)
def test_an_accounting_has_its_sum_and_name(
    arguments: dict[str, Any], each: int, name: str
) -> None:
    found = accounting(**arguments)
    assert (found.bytes_per_parameter, found.name) == (each, name)


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"moments": ("bf16", "fp32")}, {"first moment": 2, "second moment": 4, "master copy": 4}),
        ({"moments": (1, 2)}, {"first moment": 1, "second moment": 2, "master copy": 4}),
        ({"optimizer": "sgd_momentum"}, {"moment": 4, "master copy": 4}),
        ({"optimizer": "sgd"}, {"master copy": 4}),
        ({"optimizer": "none"}, {}),
        ({"optimizer": "sgd", "master": None}, {}),
        ({"master": "fp16", "optimizer": "sgd"}, {"master copy": 2}),
    ],
)
def test_what_an_optimizer_keeps(arguments: dict[str, Any], parts: dict[str, int]) -> None:
    assert sizes(**arguments) == {"weights": 2, "gradients": 2, **parts}


def test_the_gradients_are_as_wide_as_the_weights_unless_said_otherwise() -> None:
    assert sizes(weights="fp32", optimizer="none") == {"weights": 4, "gradients": 4}
    assert sizes(weights=1, grads=2, optimizer="none") == {"weights": 1, "gradients": 2}


def test_a_torch_dtype_is_called_as_torch_calls_it_without_its_module() -> None:
    torch = pytest.importorskip("torch")
    assert accounting(weights=torch.bfloat16).components[0].dtype == "bfloat16"


@pytest.mark.parametrize(
    ("arguments", "seen"),
    [
        ({"weights": "fp12"}, "'fp12' is no dtype"),
        ({"grads": "80 GB"}, "'80 GB' is no dtype"),
        ({"moments": "fp12"}, "'fp12' is no dtype"),
        ({"master": "fp12"}, "'fp12' is no dtype"),
        ({"weights": True}, "True is no dtype"),
        ({"weights": 0}, "0 is no dtype"),
        ({"optimizer": "lion"}, "optimizer='lion': expected one of adam, adamw"),
        ({"optimizer": "sgd", "moments": "fp32"}, "moments=fp32: sgd keeps none"),
        ({"optimizer": "none", "moments": "fp32"}, "moments=fp32: there is no optimizer"),
        ({"optimizer": "none", "master": "fp32"}, "master='fp32': without an optimizer"),
        ({"moments": ("fp32",) * 3}, "moments=fp32,fp32,fp32: 3 dtypes; adamw keeps 2"),
        ({"optimizer": "adagrad", "moments": ("fp32", "fp32")}, "2 dtypes; adagrad keeps 1"),
        ({"moments": ()}, "0 dtypes; adamw keeps 2"),
    ],
)
def test_a_wrong_accounting_is_refused(arguments: dict[str, Any], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        accounting(**arguments)
