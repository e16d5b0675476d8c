"""The ways to shard that can be simulated, by name. What they do to a model is in `rehearsal`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.plain import Plain

# What no world divides, at a moment that every world has: a layer is gathered whole, its batch is
# the rank's own. The other categories hold shards too, or are of moments that come and go.
_WHOLE: Final = frozenset({"unsharded parameters", "saved activations", "inputs", "buffers"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(Plain):
    """A way to shard.

    `shards` tells whether it shards at all, `reshard` whether units are sharded again after their
    forward, `closed_form` the stage of ZeRO whose state it has. `warm_up` is the number of steps
    before one is like the next: DDP rebuilds its buckets in the second.
    """

    name: str
    shards: bool
    reshard: bool
    closed_form: int
    warm_up: int

    def divides(self, category: str) -> bool:
        """Tell whether a larger world may have less of a category of live memory on each rank."""
        return self.shards and category not in _WHOLE


STRATEGIES: Final = {
    one.name: one
    for one in (
        Strategy(name="fsdp2", shards=True, reshard=True, closed_form=3, warm_up=1),
        Strategy(name="fsdp2-no-reshard", shards=True, reshard=False, closed_form=3, warm_up=1),
        Strategy(name="ddp", shards=False, reshard=False, closed_form=0, warm_up=2),
    )
}


def strategy_named(name: str) -> Strategy:
    """Return the strategy of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in STRATEGIES:
        raise UsageError(f"strategy {name!r}: expected one of {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
