"""The options of `shardcheck plan` about activations → how many bytes of them each GPU holds."""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.cli.values import a_count, a_size, words
from pytest_shardcheck.formulas import (
    RECOMPUTATIONS,
    ActivationBytes,
    Transformer,
    transformer_activations,
)
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

# The letters of a transformer, and how the config files of Hugging Face models call them.
_SHAPE: Final = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "num_heads"),
}
_FACTOR: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to keep activations; its label is empty where there are none."""

    label: str
    activations: ActivationBytes


def add_activations(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group(
        "activations",
        "as a size, or of a GPT-like transformer (Korthikanti et al. 2022: 16-bit activations, "
        "no flash attention)",
    )
    group.add_argument(
        "--activations", type=a_size, metavar="SIZE", help="of one sample on one GPU, undivided"
    )
    group.add_argument("--batch", type=a_count, metavar="N", help="samples of a GPU (1)")
    group.add_argument(
        "--checkpointing",
        type=words,
        metavar="HOW",
        help="what --activations is divided by: 2, 2,4 or 2..5; of a transformer none, selective "
        "or full recomputation. Several are compared",
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="a model's config.json")
    for name, keys in _SHAPE.items():
        group.add_argument(f"--{name}", type=a_count, metavar="N", help=f"{keys[0]} of a config")
    group.add_argument("--sequence", type=a_count, metavar="N", help="tokens of a sample")
    group.add_argument(
        "--sequence-parallel",
        action="store_true",
        help="with --tensor-parallel: norms and dropout are cut along the sequence",
    )


def variants(arguments: argparse.Namespace) -> list[Variant]:
    """Return the ways to keep activations that were asked for; one without any where none was.

    Raises:
        UsageError: options are missing, or don't go together.
    """
    shape = ("config", *_SHAPE, "sequence", "sequence_parallel")
    of_transformer = [name for name in shape if getattr(arguments, name)]
    if arguments.activations is not None:
        if of_transformer:
            raise UsageError(
                f"{_options('activations', *of_transformer)}: give the size of the activations or "
                "the shape of a transformer, not both"
            )
        return _divided(arguments)
    if of_transformer:
        return _of_transformer(arguments)
    idle = [name for name in ("checkpointing", "batch") if getattr(arguments, name) is not None]
    if idle:
        raise UsageError(
            f"{_options(*idle)}: there are no activations; give --activations, or --config and "
            "--sequence"
        )
    return [Variant(label="", activations=ActivationBytes())]


def _divided(arguments: argparse.Namespace) -> list[Variant]:
    batch = arguments.batch or 1
    of_batch = batch * parse_size(arguments.activations)
    label = f"activations {arguments.activations}" + (f" x {batch}" if batch > 1 else "")
    return [
        Variant(
            label=label + (f" / {word}" if factor != 1 else ""),
            activations=ActivationBytes(stored=math.ceil(of_batch / factor)),
        )
        for word, factor in _factors(arguments.checkpointing or ("1",))
    ]


def _factors(given: Sequence[str]) -> list[tuple[str, Fraction]]:
    factors = []
    for word in given:
        factor = Fraction(word if _FACTOR.fullmatch(word) else 0)
        if factor < 1:
            raise UsageError(
                f"--checkpointing {word}: expected a number from 1 on by which --activations is "
                f"divided, such as 2 or 2..5 ({', '.join(RECOMPUTATIONS)} are of a transformer's "
                "shape)"
            )
        factors.append((word, factor))
    return factors


def _of_transformer(arguments: argparse.Namespace) -> list[Variant]:
    shape = _read_config(arguments.config) if arguments.config else {}
    shape |= {name: getattr(arguments, name) for name in _SHAPE if getattr(arguments, name)}
    missing = [name for name in _SHAPE if name not in shape]
    missing += [] if arguments.sequence else ["sequence"]
    if missing:
        raise UsageError(f"a transformer's activations need {_options(*missing)}, too")
    model = Transformer(
        **shape,
        sequence=arguments.sequence,
        batch=arguments.batch or 1,
        tensor_parallel=arguments.tensor_parallel,
        sequence_parallel=arguments.sequence_parallel,
    )
    if model.sequence_parallel and model.tensor_parallel == 1:
        raise UsageError("--sequence-parallel: it cuts nothing without --tensor-parallel")
    asked = arguments.checkpointing or ("none",)
    for word in asked:
        if word not in RECOMPUTATIONS:
            known = ", ".join(RECOMPUTATIONS)
            raise UsageError(f"--checkpointing {word}: of a transformer expected {known}")
    return [
        Variant(
            label=f"{'no' if word == 'none' else word} recomputation",
            activations=transformer_activations(model, word),
        )
        for word in asked
    ]


def _read_config(path: Path) -> dict[str, int]:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--config {path}: this is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise UsageError(f"--config {path}: expected an object, seen a {type(config).__name__}")
    # Models of text and images have the text's part inside.
    text = config.get("text_config")
    inner: dict[str, Any] = text if isinstance(text, dict) else {}
    shape: dict[str, int] = {}
    for name, keys in _SHAPE.items():
        found = [where[key] for where in (config, inner) for key in keys if key in where]
        shape |= {name: found[0]} if found else {}
    return shape


def _options(*names: str) -> str:
    return " and ".join(f"--{name.replace('_', '-')}" for name in names)
