"""`shardcheck plan --model`: the same question, answered by simulation. No torch here.

torch is imported by the processes that simulate, one a world.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.cli.values import a_count, words
from pytest_shardcheck.plan.chart import save_chart
from pytest_shardcheck.plan.document import simulated_document
from pytest_shardcheck.plan.search import Plan, plan_simulated
from pytest_shardcheck.plan.simulated import TIMEOUT_S, Simulated
from pytest_shardcheck.plan.simulated_table import simulated_heading, simulated_tables
from pytest_shardcheck.plan.strategies import STRATEGIES, strategy_named
from pytest_shardcheck.vocabulary.errors import DeadRankError, UsageError

if TYPE_CHECKING:
    from pytest_shardcheck.plan.footprint import Footprint

_DEFAULT: Final = "fsdp2"
# What the model, its inputs and the strategy say themselves.
_OF_CLOSED_FORM: Final = (
    *("weights", "grads", "moments", "master", "stage", "hsdp_replicate", "tensor_parallel"),
    *("buffers", "activations", "batch", "checkpointing", "config", "layers", "hidden", "heads"),
    *("sequence", "sequence_parallel"),
)
_OF_SIMULATION: Final = ("strategy", "no_reshard", "unit", "ranks", "timeout")


def add_model(parser: argparse._MutuallyExclusiveGroup) -> None:
    """Add the option that asks for a simulation."""
    parser.add_argument(
        "--model",
        metavar="MODULE:FUNCTION",
        help="simulate the model that this function returns, or its (model, inputs)",
    )


def add_simulation(parser: argparse.ArgumentParser) -> None:
    """Add the options of a simulation."""
    group = parser.add_argument_group(
        "with --model", "also --world, --hsdp-shard and --optimizer (adamw)"
    )
    group.add_argument(
        "--strategy",
        type=words,
        metavar="LIST",
        help=f"some of {', '.join(STRATEGIES)} ({_DEFAULT})",
    )
    group.add_argument(
        "--no-reshard", action="store_true", help="fsdp2 with reshard_after_forward=False"
    )
    group.add_argument(
        "--unit",
        type=words,
        metavar="LIST",
        help="classes of the modules that are gathered one at a time (by default the members of "
        "each outermost ModuleList or Sequential)",
    )
    group.add_argument("--ranks", type=_ranks, metavar="LIST", help="that run, -1 is the last (0)")
    group.add_argument(
        "--timeout", type=a_count, metavar="SECONDS", help=f"of one world ({TIMEOUT_S:g})"
    )


def check_no_simulation(arguments: argparse.Namespace) -> None:
    """Refuse what only a simulation knows."""
    _refuse(arguments, _OF_SIMULATION, "it belongs to --model")


def run_simulation(arguments: argparse.Namespace) -> int:
    """Simulate each strategy in each world, print what was found, and draw it."""
    _refuse(arguments, _OF_CLOSED_FORM, "with --model it is what the model and its inputs are")
    if arguments.world is None:
        raise UsageError("--model needs the worlds to simulate, such as --world 8,16,32,64")
    estimates = _estimates(arguments)
    for estimate in estimates:  # before the first of them takes minutes
        for world in arguments.world:
            estimate.check(world)
    try:
        plans = [_plan(estimate, arguments) for estimate in estimates]
    except DeadRankError as error:
        sys.stderr.write(f"shardcheck: {error}\n")
        return 1
    if arguments.json:
        found = simulated_document(plans, model=arguments.model, limit=arguments.limit)
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        lines = simulated_heading(plans, model=arguments.model, limit=arguments.limit)
        lines += simulated_tables(plans, limit=arguments.limit)
        sys.stdout.write("\n".join(lines) + "\n")
    if arguments.chart is not None:
        save_chart(plans, limit=arguments.limit, path=arguments.chart, title=_title(plans))
    return 0


def _estimates(arguments: argparse.Namespace) -> list[Simulated]:
    names = arguments.strategy or (_DEFAULT,)
    if arguments.no_reshard:
        if names != (_DEFAULT,):
            raise UsageError(f"--no-reshard is of fsdp2 alone; seen --strategy {','.join(names)}")
        names = ("fsdp2-no-reshard",)
    if not any(strategy_named(name).shards for name in names):
        _refuse(arguments, ("hsdp_shard", "unit"), f"{','.join(names)} shards nothing")
    return [
        Simulated(
            model=arguments.model,
            strategy=name,
            shard=shard,
            units=(arguments.unit or ()) if strategy_named(name).shards else (),
            optimizer=arguments.optimizer or "adamw",
            ranks=arguments.ranks or (0,),
            timeout_s=arguments.timeout or TIMEOUT_S,
        )
        for name in names
        for shard in (arguments.hsdp_shard if strategy_named(name).shards else ()) or (None,)
    ]


def _plan(estimate: Simulated, arguments: argparse.Namespace) -> Plan:
    return plan_simulated(_Told(estimate), limit=arguments.limit, worlds=arguments.world)


class _Told:
    """An estimate that says on a terminal what it is at: a world can take a minute."""

    def __init__(self, estimate: Simulated) -> None:
        self._estimate = estimate
        self.name = estimate.name

    def footprint(self, world: int) -> Footprint:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[Ksimulating {self.name} at {world:,} GPUs ...")
            sys.stderr.flush()
        try:
            return self._estimate.footprint(world)
        finally:
            if sys.stderr.isatty():
                sys.stderr.write("\r\x1b[K")


def _title(plans: list[Plan]) -> str:
    step = plans[0].footprints[0].step
    assert step is not None, "of a simulation"
    return f"{step.parameters:,} parameters, peak of a simulated step"


def _refuse(arguments: argparse.Namespace, names: tuple[str, ...], why: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    if given:
        raise UsageError(f"{' and '.join(given)}: {why}; leave it out")


def _ranks(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: expected numbers of ranks, such as 0,-1"
        ) from None
