"""Activation bytes: Korthikanti et al. 2022 by their own figures, checkpointing by measured ones.

That a layer really saves what the formulas say is measured in tests/regression.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_shardcheck import UsageError
from pytest_shardcheck.formulas import (
    ActivationBytes,
    Transformer,
    checkpointed,
    transformer_activations,
)

GPT3 = Transformer(layers=96, hidden=12_288, heads=96, sequence=2048)
MT_NLG = Transformer(layers=105, hidden=20_480, heads=128, sequence=2048)


def per_sbh(model: Transformer, recomputation: str = "none") -> float:
    """Return what a layer stores in the paper's unit."""
    stored = transformer_activations(model, recomputation).stored
    return stored / (model.layers * model.sequence * model.batch * model.hidden)


def test_a_layer_has_34_sbh_and_five_for_the_scores() -> None:
    one = Transformer(layers=1, hidden=8, heads=2, sequence=4, batch=3)
    sbh, scores = 4 * 3 * 8, 2 * 4**2 * 3
    assert transformer_activations(one) == ActivationBytes(stored=34 * sbh + 5 * scores)


# Section 5: 5as/h is 80 of GPT-3 and 64 of MT-NLG, and to recompute it saves 70 and 65 %.
@pytest.mark.parametrize(("model", "scores", "saved"), [(GPT3, 80, 0.70), (MT_NLG, 64, 0.65)])
def test_the_papers_models(model: Transformer, scores: int, saved: float) -> None:
    assert per_sbh(model) == 34 + scores
    assert per_sbh(model, "selective") == 34
    assert per_sbh(model, "full") == 2
    assert 1 - per_sbh(model, "selective") / per_sbh(model) == pytest.approx(saved, abs=0.005)


# Table 2, with t = 8.
@pytest.mark.parametrize(
    ("sequence_parallel", "recomputation", "expected"),
    [
        (False, "none", 10 + 24 / 8 + 80 / 8),
        (True, "none", 34 / 8 + 80 / 8),
        (False, "selective", 10 + 24 / 8),
        (True, "selective", 34 / 8),
        (False, "full", 2),
    ],
)
def test_the_rows_of_table_2(sequence_parallel: bool, recomputation: str, expected: float) -> None:
    model = replace(GPT3, tensor_parallel=8, sequence_parallel=sequence_parallel)
    assert per_sbh(model, recomputation) == expected


def test_sequence_parallel_divides_everything() -> None:
    cut = replace(MT_NLG, tensor_parallel=4, sequence_parallel=True)
    for recomputation in ("none", "selective", "full"):
        whole = transformer_activations(MT_NLG, recomputation)
        assert transformer_activations(cut, recomputation) == ActivationBytes(
            stored=whole.stored // 4, recomputed=whole.recomputed // 4
        )


def test_what_backward_computes_anew_comes_on_top() -> None:
    sbh = GPT3.sequence * GPT3.hidden
    assert transformer_activations(GPT3, "none").recomputed == 0
    # A layer is 114 sbh, its input 2 of these.
    assert transformer_activations(GPT3, "full").recomputed == 112 * sbh
    # The scores are 80 sbh, and what comes after them, 24 sbh, is gone by then.
    assert transformer_activations(GPT3, "selective").recomputed == 56 * sbh
    short = replace(GPT3, sequence=256)  # scores of 10 sbh find room in that
    assert transformer_activations(short, "selective").recomputed == 0


def test_a_batch_multiplies() -> None:
    for recomputation in ("none", "selective", "full"):
        one = transformer_activations(GPT3, recomputation)
        four = transformer_activations(replace(GPT3, batch=4), recomputation)
        assert (four.stored, four.recomputed) == (4 * one.stored, 4 * one.recomputed)


@pytest.mark.parametrize(
    ("arguments", "at_forward_end", "peak"),
    [
        # Blocks d -> 4d -> d with ReLU, L = 4, b = 32, d = 256, fp32: 20 Lbd without.
        ({"layers": 4, "layer": 20 * 32 * 256, "kept": 20 * 32 * 256}, 655_360, 655_360),
        ({"layers": 4, "layer": 20 * 32 * 256, "kept": 4 * 32 * 256}, 131_072, 262_144),
        # Three blocks Linear(8, 32)-gelu-Linear(32, 8), batch 4 (pytorch issue 147449).
        ({"layers": 3, "layer": 1_152, "kept": 1_152}, 3_456, 3_456),
        ({"layers": 3, "layer": 1_152, "kept": 128}, 384, 384 + 1_024),
        # The whole model as one checkpoint: nothing is won at the peak.
        ({"layers": 1, "layer": 3_456, "kept": 128}, 128, 3_456),
    ],
)
def test_measured_checkpoints(arguments: dict[str, int], at_forward_end: int, peak: int) -> None:
    found = checkpointed(**arguments)
    assert (found.stored, found.peak) == (at_forward_end, peak)


@pytest.mark.parametrize(
    ("changes", "seen"),
    [
        ({"layers": 0}, "layers=0: expected an int from 1 on"),
        ({"hidden": 1.5}, "hidden=1.5: expected an int"),
        ({"heads": True}, "heads=True: expected an int"),
        ({"batch": -1}, "batch=-1: expected an int"),
        ({"tensor_parallel": 5}, "heads=96 can't be cut in tensor_parallel=5 equal parts"),
        ({"heads": 64, "tensor_parallel": 64, "hidden": 96}, "hidden=96 can't be cut"),
        ({"tensor_parallel": 3, "sequence_parallel": True}, "sequence=2048 can't be cut"),
    ],
)
def test_a_wrong_shape_is_refused(changes: dict[str, Any], seen: str) -> None:
    with pytest.raises(UsageError, match=seen):
        replace(GPT3, **changes)


def test_an_unknown_recomputation_is_refused() -> None:
    with pytest.raises(UsageError, match="recomputation='some': expected one of none, selective"):
        transformer_activations(GPT3, "some")
