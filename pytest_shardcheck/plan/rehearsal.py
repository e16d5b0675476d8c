"""One rank of one world, in a process of its own, outside of pytest.

Reads a `Question` from its standard input, trains the model for some steps on fake tensors in
groups without peers, and leaves a `Reply`. It ends when its standard input does: whoever asked has
gone then.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import traceback
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, Any

from pytest_shardcheck.plan import models
from pytest_shardcheck.plan.questions import ANSWER, Question, Reply, Sent, SimulatedStep
from pytest_shardcheck.plan.strategies import Strategy, strategy_named
from pytest_shardcheck.vocabulary.errors import NoValueError, UsageError
from pytest_shardcheck.vocabulary.files import write_whole
from pytest_shardcheck.worlds import rendezvous
from pytest_shardcheck.worlds.orders import SEED

if TYPE_CHECKING:
    from torch import nn

    from pytest_shardcheck.vocabulary.readings import Reading


def main() -> None:
    """Answer one question."""
    asking = os.fdopen(os.dup(0), encoding="utf-8")
    question = Question.from_json(json.loads(asking.readline()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a model that reads finds nothing, and no lock
    Thread(target=_leave_with, args=(asking, question.directory), daemon=True).start()
    reply = _reply(question)
    write_whole(Path(question.directory) / ANSWER, json.dumps(reply.to_json()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # as ranks do: no teardown of groups that have no peers


def _leave_with(asking: IO[str], directory: str) -> None:
    asking.read()
    shutil.rmtree(directory, ignore_errors=True)  # who made it can't any more
    os._exit(1)


def _reply(question: Question) -> Reply:
    try:
        return Reply(step=rehearse(question))
    except NoValueError as error:
        from pytest_shardcheck.simulation.asking import HOLDS_NOTHING

        # Its advice is for tests, which can ask their world.
        why = str(error).removesuffix(f", and {HOLDS_NOTHING}")
        return Reply(
            error=f"{why}. A plan has no data: tensors have shapes, dtypes and bytes. Leave it out "
            "of the function and of the model's forward"
        )
    except UsageError as error:
        return Reply(error=str(error))
    except Exception as error:
        return Reply(
            error=f"{type(error).__name__}: {error}".rstrip(": "), traceback=_of_users(error)
        )


def _of_users(error: Exception) -> str:
    """Return the traceback from the first frame on that is not this package's."""
    ours = str(Path(__file__).parents[1])
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith((ours, "<frozen")):
        del frames[0]
    return "".join(traceback.format_list(frames))


def rehearse(question: Question) -> SimulatedStep:
    """Return what the rank does in a steady step.

    Raises:
        UsageError: the model or the strategy is not what was expected.
    """
    strategy = strategy_named(question.strategy)
    build = models.find(question.model)  # first: where it is not there, nobody waits for torch
    import torch

    from pytest_shardcheck.instruments.meter import Meter
    from pytest_shardcheck.simulation import simulation

    _become_rank(question)
    with simulation(Path(question.directory), question.rank, (question.rank,)):
        torch.distributed.init_process_group("gloo")
        meter = Meter(question.rank, "cpu")
        model, inputs = models.taken_apart(build())
        models.give_memory(model)
        about = {**_about(model), "ran": inputs is not None}
        units = models.units_of(model, question.units) if strategy.shards else []
        about["units"] = dict(Counter(type(unit).__name__ for unit in units))
        model = _sharded(model, units, strategy, question)
        del units
        optimizer = models.optimizer_named(question.optimizer, model)
        for _ in range(strategy.warm_up):
            models.take_step(model, optimizer, inputs)
        with meter.measure(model, optimizer) as measurement:
            models.take_step(model, optimizer, inputs)
        reading = measurement.reading
        meter.close()
    return _step(reading, about)


def _become_rank(question: Question) -> None:
    """Give this process what a rank of a world has before its test."""
    import torch

    from pytest_shardcheck.instruments import c10d_tap

    torch.set_num_threads(1)
    random.seed(SEED)
    torch.default_generator.manual_seed(SEED)
    os.environ.update(rendezvous.environment(question.rank, question.world, 0, os.environ))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    rendezvous.install(Path(question.directory), simulated=True)
    c10d_tap.install()


def _about(model: nn.Module) -> dict[str, Any]:
    """Describe the model before it is sharded; no reference to a parameter is left behind."""
    parameters = list(model.parameters())
    dtypes = {str(one.dtype).removeprefix("torch.") for one in parameters}
    return {
        "parameters": sum(one.numel() for one in parameters),
        "tensors": len(parameters),
        "dtypes": tuple(sorted(dtypes)),
    }


def _sharded(
    model: nn.Module, units: list[nn.Module], strategy: Strategy, question: Question
) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    try:
        if not strategy.shards:
            return DistributedDataParallel(model)
        sizes, names = [question.world], ["shard"]
        if question.shard is not None:
            sizes = [question.world // question.shard, question.shard]
            names = ["replicate", "shard"]
        mesh = init_device_mesh("cpu", tuple(sizes), mesh_dim_names=tuple(names))
        for module in [*units, model]:
            fully_shard(module, mesh=mesh, reshard_after_forward=strategy.reshard)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        if isinstance(error, NoValueError):
            raise
        raise UsageError(
            f"{strategy.name} can't shard this model over {question.world:,} ranks: {error}"
        ) from error
    return model


def _step(reading: Reading, about: dict[str, Any]) -> SimulatedStep:
    memory, sent = reading.memory, reading.collectives
    return SimulatedStep(
        rank=reading.rank,
        params=memory.params or 0,
        grads=memory.grads or 0,
        optimizer=memory.optimizer or 0,
        buffers=memory.buffers or 0,
        live=_measured(memory.live, reading),
        peak=_measured(memory.peak, reading),
        at_peak={name: size for name, size in memory.at_peak.items() if size},
        collectives={
            name: Sent(count=sent[name].count, wire_bytes=sent[name].wire_bytes) for name in sent
        },
        **about,
    )


def _measured(figure: int | None, reading: Reading) -> int:
    if figure is None:
        raise UsageError(f"its memory can't be counted: {reading.memory.live_unmeasured}")
    return figure
