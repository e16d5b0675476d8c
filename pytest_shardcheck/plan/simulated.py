"""The footprint by simulation: a model trained on fake tensors, a process for each rank asked."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from pytest_shardcheck.formulas import OPTIMIZERS
from pytest_shardcheck.plan.footprint import MODULE_BUFFERS, Footprint, Part
from pytest_shardcheck.plan.questions import ANSWER, Question, Reply, SimulatedStep
from pytest_shardcheck.plan.strategies import Strategy, strategy_named
from pytest_shardcheck.vocabulary.errors import DeadRankError, HungRankError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S: Final = 900.0
_LINES_SHOWN: Final = 20
# A path of PYTHONPATH would stand before the standard library's.
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pytest_shardcheck.plan.rehearsal import main; main()"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A way to train a model, whose footprint is what simulated ranks hold in a steady step.

    Args:
        model: "package.module:build", a function without arguments that returns a model, or
            (model, inputs). The model may be on the meta device; nothing in it has data.
        strategy: "fsdp2", "fsdp2-no-reshard" (`reshard_after_forward=False`) or "ddp".
        shard: with FSDP2, how many ranks divide the state; the others are replicas (HSDP).
        units: classes of the modules that are gathered one at a time; by default the members of
            each outermost ModuleList or Sequential.
        optimizer: torch's "adamw", "adam", "adagrad", "rmsprop", "sgd" or "sgd_momentum".
        ranks: those that are simulated, a process each; -1 is the last. The one that holds more is
            returned: in all these strategies that is the first.
        timeout_s: seconds that a world may take.

    Raises:
        UsageError: an argument is not what is written here.

    Limits: those of simulated worlds. The optimizer takes all parameters at once (`foreach`), as
    it does on a GPU. What a GPU needs beside its tensors (CUDA context, fragmentation) is not
    in it.
    """

    model: str
    strategy: str = "fsdp2"
    shard: int | None = None
    units: tuple[str, ...] = ()
    optimizer: str = "adamw"
    ranks: tuple[int, ...] = (0,)
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        """Refuse what can't be simulated."""
        if not self._strategy.shards and self.shard is not None:
            raise UsageError(f"shard={self.shard}: {self.strategy} shards nothing; use fsdp2")
        if self.shard is not None and self.shard < 1:
            raise UsageError(f"shard={self.shard}: expected a number of ranks from 1 on")
        if self.optimizer not in OPTIMIZERS:
            raise UsageError(
                f"optimizer={self.optimizer!r}: expected one of {', '.join(OPTIMIZERS)}"
            )
        if not self.ranks:
            raise UsageError("ranks=(): expected at least one rank, such as 0")
        if self.units and not self._strategy.shards:
            raise UsageError(f"units={self.units}: {self.strategy} gathers none; use fsdp2")

    @property
    def name(self) -> str:
        """Name the way to shard: "fsdp2", "fsdp2 shard 8"."""
        return self.strategy if self.shard is None else f"{self.strategy} shard {self.shard}"

    @property
    def step(self) -> int:
        """Return the smallest world; the others are its multiples."""
        return self.shard or 1

    @property
    def _strategy(self) -> Strategy:
        return strategy_named(self.strategy)

    def check(self, world: int) -> None:
        """Refuse a world that there is not, without simulating it.

        Raises:
            UsageError: it is no multiple of `step`, has not all of `ranks`, or is no int.
        """
        if not isinstance(world, int) or isinstance(world, bool) or world < 1:
            raise UsageError(f"world={world!r}: expected an int from 1 on")
        if world % self.step:
            raise UsageError(f"world={world}: {self.name} needs a multiple of {self.step}")
        for rank in self.ranks:
            self._rank(rank, world)

    def footprint(self, world: int) -> Footprint:
        """Return what the rank that holds most has at its peak; its `step` says all of it.

        Raises:
            UsageError: there is no such world, or the model can't be built, sharded or trained.
            DeadRankError: a process of the simulation died.
            HungRankError: it took longer than `timeout_s`.
        """
        self.check(world)
        steps = self._simulate(world, sorted({self._rank(rank, world) for rank in self.ranks}))
        return self._footprint(world, max(steps, key=lambda step: (step.peak, -step.rank)))

    def _rank(self, given: int, world: int) -> int:
        if not -world <= given < world:
            raise UsageError(f"rank {given}: a world of {world} has ranks 0 to {world - 1}")
        return given % world

    def _footprint(self, world: int, step: SimulatedStep) -> Footprint:
        shards = (self.shard or world) if self._strategy.shards else 1
        return Footprint(
            world=world,
            shards=shards,
            replicas=world // shards,
            parts=tuple(
                Part(
                    # A closed form's buffers are those of communication.
                    name=MODULE_BUFFERS if name == "buffers" else name,
                    bytes=size,
                    divided=self.shard is None and self._strategy.divides(name),
                )
                for name, size in step.at_peak.items()
            ),
            step=step,
        )

    def _simulate(self, world: int, ranks: Sequence[int]) -> list[SimulatedStep]:
        what = f"{self.model}, {self.name} at {world:,} GPUs"
        with ExitStack() as stack:
            processes = [
                stack.enter_context(_Process(self._question(world, rank, folder), what))
                for rank in ranks
                if (folder := stack.enter_context(_folder()))
            ]
            deadline = time.monotonic() + self.timeout_s
            return [one.step(deadline, self.timeout_s) for one in processes]

    def _question(self, world: int, rank: int, folder: str) -> Question:
        return Question(
            model=self.model,
            strategy=self.strategy,
            shard=self.shard,
            units=self.units,
            optimizer=self.optimizer,
            world=world,
            rank=rank,
            directory=folder,
        )


def _paths() -> list[str]:
    """Return where modules are found: as here, and in the current folder, as `python -m` does."""
    return list(dict.fromkeys([str(Path.cwd()), *filter(None, sys.path)]))


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="shardcheck-plan-")


class _Process:
    """A simulated rank, from its start until its block ends, which it never outlives."""

    def __init__(self, question: Question, what: str) -> None:
        self._what = f"{what}, rank {question.rank}"
        self._folder = Path(question.directory)
        self._question = question

    def __enter__(self) -> _Process:
        with (self._folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, json.dumps(_paths())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        stdin = self._stdin
        with suppress(BrokenPipeError):  # it died: `step` says how
            stdin.write(json.dumps(self._question.to_json()) + "\n")
            stdin.flush()  # and held open: it ends when we do
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        with suppress(BrokenPipeError):
            self._stdin.close()

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def step(self, deadline: float, timeout_s: float) -> SimulatedStep:
        """Wait for its answer, and raise what it says."""
        try:
            code = self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise HungRankError(
                f"{self._what}: it took longer than {timeout_s:g} s; give it more time, or the "
                f"model fewer layers{self._output()}"
            ) from None
        try:
            answer = (self._folder / ANSWER).read_text(encoding="utf-8")
        except FileNotFoundError:
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise DeadRankError(
                f"{self._what}: the process of the simulation died ({how}){self._output()}"
            ) from None
        reply = Reply.from_json(json.loads(answer))
        if reply.step is None:
            trace = f"\n{reply.traceback.rstrip()}" if reply.traceback else ""
            raise UsageError(f"{self._what}: {reply.error}{trace}")
        return reply.step

    def _output(self) -> str:
        """Return the last that it printed, which nobody wants to see where all is well."""
        text = (self._folder / "output").read_text(encoding="utf-8", errors="replace")
        lines = text.strip().splitlines()[-_LINES_SHOWN:]
        return "".join(f"\n  {line}" for line in lines)
