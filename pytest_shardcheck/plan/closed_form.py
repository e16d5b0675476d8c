"""The footprint by arithmetic: ZeRO (Rajbhandari et al. 2020, section 3) and HSDP."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pytest_shardcheck.formulas import (
    DIVIDED_FROM,
    Accounting,
    ActivationBytes,
    accounting,
    held_elements,
)
from pytest_shardcheck.plan.footprint import ACTIVATIONS, BUFFERS, RECOMPUTED, Footprint, Part
from pytest_shardcheck.vocabulary.errors import UsageError

# Trillions of parameters are counted in 10^12; beyond this a size is a slip of the keyboard.
MOST_PARAMETERS = 10**18


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """A way to train a model, whose footprint is worked out.

    Args:
        params: how many parameters the model has, over all ranks.
        stage: 0 (plain data parallelism, DDP) to 3 (FSDP).
        accounting: what is kept for each parameter; by default the paper's 16 bytes.
        activations: bytes of activations on one GPU.
        buffers: bytes that each GPU needs besides: buckets, gathered layers, what the CUDA context
            and fragmentation take.
        tensors: how many parameter tensors of a GPU have a step counter of 4 bytes, as torch's
            Adam has (see `zero_bytes`).
        shard: for HSDP, how many GPUs divide the state; the others are replicas of them.
        replicate: for HSDP, how many replicas there are, where `shard` is not given.
        tensor_parallel: how many GPUs hold the parts of each layer (all layers are taken as cut,
            which leaves out norms and biases that each holds whole).

    Raises:
        UsageError: an argument is not what is written here.

    Limits: the state of each rank is ceil(Ψ / N) elements, as in one flat unit; FSDP2 cuts each
    tensor along its first axis, which leaves the first rank a little more where that is not a
    multiple of N. Layers that are gathered while they run are not in it unless `buffers` has them.
    """

    params: int
    stage: int
    accounting: Accounting = field(default_factory=accounting)
    activations: ActivationBytes = field(default_factory=ActivationBytes)
    buffers: int = 0
    tensors: int = 0
    shard: int | None = None
    replicate: int | None = None
    tensor_parallel: int = 1

    def __post_init__(self) -> None:
        """Refuse what no training has."""
        if self.stage not in (0, 1, 2, 3) or isinstance(self.stage, bool):
            raise UsageError(f"stage={self.stage!r}: expected 0, 1, 2 or 3")
        _whole("params", self.params, 1)
        if self.params > MOST_PARAMETERS:
            raise UsageError(f"params={self.params:.3g}: expected at most {MOST_PARAMETERS:.0e}")
        _whole("buffers", self.buffers, 0)
        _whole("tensors", self.tensors, 0)
        _whole("tensor_parallel", self.tensor_parallel, 1)
        for name in ("shard", "replicate"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        if self.shard is not None and self.replicate is not None:
            raise UsageError(
                f"shard={self.shard} and replicate={self.replicate}: give one, the size of the "
                "world says the other"
            )
        if self.hybrid and self.stage != 3:
            raise UsageError(f"stage={self.stage}: HSDP is stage 3 inside of each replica")

    @property
    def hybrid(self) -> bool:
        """Say whether this is HSDP: replicas of a sharded model."""
        return self.shard is not None or self.replicate is not None

    @property
    def name(self) -> str:
        """Name the way to shard: "ZeRO-3", "HSDP shard 8", "HSDP 2 replicas"."""
        if self.shard is not None:
            return f"HSDP shard {self.shard}"
        if self.replicate is not None:
            return f"HSDP {self.replicate} replicas" if self.replicate > 1 else "HSDP 1 replica"
        return f"ZeRO-{self.stage}"

    @property
    def step(self) -> int:
        """Return the smallest world; the others are its multiples."""
        return self.tensor_parallel * (self.shard or self.replicate or 1)

    @property
    def most(self) -> int:
        """Return a world from which on nothing shrinks: every shard has one element."""
        return self.step * (1 if self.shard is not None else self._params_of_a_gpu)

    @property
    def sharded_alone(self) -> ClosedForm:
        """Return the same without replicas."""
        return replace(self, shard=None, replicate=None)

    def footprint(self, world: int) -> Footprint:
        """Return what one GPU of `world` holds at its peak.

        Raises:
            UsageError: `world` is no multiple of `step`.
        """
        _whole("world", world, 1)
        if world % self.step:
            raise UsageError(
                f"world={world}: {self._name_with_tensor_parallel} needs a multiple of {self.step}"
            )
        ranks = world // self.tensor_parallel
        shards = self.shard or ranks // (self.replicate or 1)
        if not self.hybrid and self.stage == 0:
            shards = 1
        return Footprint(
            world=world,
            shards=shards,
            replicas=ranks // shards,
            parts=(*self._state(shards), *self._transient()),
        )

    @property
    def _params_of_a_gpu(self) -> int:
        return -(-self.params // self.tensor_parallel)

    @property
    def _name_with_tensor_parallel(self) -> str:
        cut = self.tensor_parallel
        return self.name if cut == 1 else f"{self.name} x tensor parallel {cut}"

    def _state(self, shards: int) -> tuple[Part, ...]:
        parts = [
            Part(
                name=component.name,
                bytes=component.size
                * held_elements(
                    kind=component.kind,
                    stage=self.stage,
                    params=self._params_of_a_gpu,
                    shards=shards,
                ),
                # With a fixed shard size more GPUs are more replicas, and nothing shrinks.
                divided=self.shard is None and self.stage >= DIVIDED_FROM[component.kind],
            )
            for component in self.accounting.components
        ]
        if self.tensors:
            parts.append(Part(name="step counters", bytes=4 * self.tensors))
        return tuple(parts)

    def _transient(self) -> tuple[Part, ...]:
        sizes = {
            ACTIVATIONS: self.activations.stored,
            RECOMPUTED: self.activations.recomputed,
            BUFFERS: self.buffers,
        }
        return tuple(Part(name=name, bytes=size) for name, size in sizes.items() if size)


def _whole(name: str, given: object, least: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool) or given < least:
        raise UsageError(f"{name}={given!r}: expected an int from {least} on")
