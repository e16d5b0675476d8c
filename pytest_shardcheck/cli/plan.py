"""`shardcheck plan`: how many GPUs a model needs, by closed form or simulation. No torch here."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.cli.plan_activations import Variant, add_activations, variants
from pytest_shardcheck.cli.plan_simulated import (
    add_model,
    add_simulation,
    check_no_simulation,
    run_simulation,
)
from pytest_shardcheck.cli.values import a_count, a_size, counts, words
from pytest_shardcheck.formulas import NO_OPTIMIZER, OPTIMIZERS, Accounting, accounting
from pytest_shardcheck.plan.chart import check_chart, save_chart
from pytest_shardcheck.plan.closed_form import ClosedForm
from pytest_shardcheck.plan.document import document
from pytest_shardcheck.plan.search import Plan, plan_closed_form, smallest_world
from pytest_shardcheck.plan.table import heading, tables
from pytest_shardcheck.plan.worlds import curve_worlds, shown_worlds, worlds_of
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import parse_size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

NAME: Final = "plan"
HELP: Final = (
    "Say how many GPUs a model needs under a limit of memory: by closed form (--params), or by "
    "simulating a step of it (--model)."
)
_NONE: Final = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    variant: Variant
    estimate: ClosedForm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--params", type=a_count, metavar="N", help="parameters, such as 70e9")
    add_model(asked)
    parser.add_argument(
        "--limit", type=a_size, required=True, metavar="SIZE", help='of one GPU, such as "80 GB"'
    )
    add_simulation(parser)
    group = parser.add_argument_group("bytes of a parameter")
    group.add_argument("--weights", metavar="DTYPE", help="fp16")
    group.add_argument("--grads", metavar="DTYPE", help="as the weights")
    group.add_argument(
        "--moments", type=words, metavar="DTYPE", help="fp32; one for each, such as bf16,fp32"
    )
    group.add_argument("--master", metavar="DTYPE", help="fp32 with narrower weights; or none")
    group.add_argument("--optimizer", choices=(*OPTIMIZERS, NO_OPTIMIZER), help="adamw")
    group = parser.add_argument_group("ways to shard")
    group.add_argument("--stage", type=words, metavar="LIST", help="ZeRO stages (0,1,2,3)")
    group.add_argument(
        "--hsdp-shard", type=counts, default=(), metavar="LIST", help="GPUs that shard together"
    )
    group.add_argument(
        "--hsdp-replicate", type=counts, default=(), metavar="LIST", help="numbers of replicas"
    )
    group.add_argument("--tensor-parallel", type=a_count, metavar="N", help="1")
    group.add_argument("--world", type=counts, metavar="LIST", help="GPUs to show, as 8,16,64")
    group = parser.add_argument_group("other memory")
    group.add_argument(
        "--buffers",
        type=a_size,
        metavar="SIZE",
        help="of each GPU: buckets, gathered layers, the CUDA context, fragmentation",
    )
    add_activations(parser)
    group = parser.add_argument_group("output")
    group.add_argument(
        "--chart", metavar="FILE", help="draw it (.png, .svg, .pdf; needs matplotlib)"
    )
    group.add_argument("--json", action="store_true", help="print JSON, in bytes")


def run(arguments: argparse.Namespace) -> int:
    """Print the plans, and draw them where a chart is asked for."""
    if arguments.chart is not None:
        check_chart(arguments.chart)  # before anything is printed
    if arguments.model is not None:
        return run_simulation(arguments)
    check_no_simulation(arguments)
    arguments.tensor_parallel = arguments.tensor_parallel or 1
    each = _accounting(arguments)
    asked = _asked(arguments, each)
    limit: str = arguments.limit
    worlds = _worlds(arguments.world, asked, limit)
    plans = _plans(asked, limit, worlds)
    if arguments.json:
        found = document(plans, params=arguments.params, accounting=each, limit=limit)
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        lines = heading(
            params=arguments.params, accounting=each, limit=limit, given=_other_sizes(arguments)
        )
        sys.stdout.write("\n".join([*lines, *tables(plans, limit=limit)]) + "\n")
    if arguments.chart is not None:
        _draw(arguments, asked, plans, each)
    return 0


def _other_sizes(arguments: argparse.Namespace) -> dict[str, str]:
    sizes = {
        "activations per sample": arguments.activations,
        "buffers per GPU": arguments.buffers,
    }
    return {name: size for name, size in sizes.items() if size is not None and parse_size(size)}


def _accounting(arguments: argparse.Namespace) -> Accounting:
    return accounting(
        weights=arguments.weights or "fp16",
        grads=arguments.grads,
        moments=arguments.moments,
        master=None if arguments.master == _NONE else arguments.master or "auto",
        optimizer=arguments.optimizer or "adamw",
    )


def _asked(arguments: argparse.Namespace, each: Accounting) -> list[_Asked]:
    asked = []
    for variant in variants(arguments):
        common = {
            "params": arguments.params,
            "accounting": each,
            "activations": variant.activations,
            "buffers": parse_size(arguments.buffers or 0),
            "tensor_parallel": arguments.tensor_parallel,
        }
        ways = [
            *({"stage": stage} for stage in _stages(arguments)),
            *({"stage": 3, "shard": shard} for shard in arguments.hsdp_shard),
            *({"stage": 3, "replicate": replicas} for replicas in arguments.hsdp_replicate),
        ]
        asked += [_Asked(variant=variant, estimate=ClosedForm(**common, **way)) for way in ways]
    return asked


def _stages(arguments: argparse.Namespace) -> list[int]:
    given = arguments.stage or ("0", "1", "2", "3")
    for stage in given:
        if stage not in ("0", "1", "2", "3"):
            raise UsageError(f"--stage {stage}: expected some of 0, 1, 2 and 3, such as 2,3")
    return [int(stage) for stage in given]


def _worlds(given: Sequence[int] | None, asked: Sequence[_Asked], limit: str) -> Sequence[int]:
    estimates = [one.estimate for one in asked]
    if given is None:
        smallest = [smallest_world(estimate, limit=limit).world for estimate in estimates]
        return shown_worlds(estimates, smallest)
    for world in given:
        if not any(world % estimate.step == 0 for estimate in estimates):
            steps = " or ".join(str(step) for step in sorted({one.step for one in estimates}))
            raise UsageError(f"--world {world}: expected a multiple of {steps}")
    return given


def _plans(asked: Sequence[_Asked], limit: str, worlds: Sequence[int]) -> list[Plan]:
    return [
        plan_closed_form(
            one.estimate,
            limit=limit,
            worlds=worlds_of(one.estimate, worlds),
            variant=one.variant.label,
        )
        for one in asked
    ]


def _draw(
    arguments: argparse.Namespace, asked: Sequence[_Asked], plans: Sequence[Plan], each: Accounting
) -> None:
    """Draw the same plans over as many worlds as make a curve, their answers among them."""
    shown = {one.world for plan in plans for one in plan.footprints}
    if len(shown) == 1:  # a point is no curve
        shown |= {min(one.estimate.step for one in asked), 2 * max(shown)}
    span = sorted(shown | {plan.answer.world for plan in plans if plan.answer.world is not None})
    curves = [
        plan_closed_form(
            one.estimate,
            limit=arguments.limit,
            worlds=[*curve_worlds(one.estimate, span), *([w] if (w := plan.answer.world) else [])],
            variant=one.variant.label,
        )
        for one, plan in zip(asked, plans, strict=True)
    ]
    labels = {one.variant.label for one in asked}
    title = f"{arguments.params:,} parameters, {each.bytes_per_parameter} B each"
    if len(labels) == 1 and (label := labels.pop()):
        title += f", {label}"
    save_chart(curves, limit=arguments.limit, path=Path(arguments.chart), title=title)
