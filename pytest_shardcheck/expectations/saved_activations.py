"""`saved_activations` and `max_saved_activations`: what autograd held, per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_shardcheck.expectations.measure import Figure, Measure, unmatched_phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_shardcheck.expectations.narrowing import Narrowing
    from pytest_shardcheck.vocabulary.readings import Reading
    from pytest_shardcheck.vocabulary.saved import SavedBytes
    from pytest_shardcheck.vocabulary.verdicts import Unit

_ARGUMENTS: Final[Mapping[str, Unit]] = {
    "count": "tensors",
    "bytes": "bytes",
    "storage_bytes": "bytes",
    "packed": "tensors",
}


def _read(reading: Reading, argument: str, narrowing: Narrowing) -> Figure:
    saved = reading.saved
    if saved is None:
        return Figure(
            amount=None,
            missing=(
                "saved activations were not measured; put the step inside "
                "`with shardcheck.measure(model, optimizer):`"
            ),
        )
    if saved.unseen:
        return Figure(
            amount=None,
            missing=(
                f"autograd saved tensors where no hook may be ({', '.join(saved.unseen)}); "
                "measure a region without it"
            ),
        )
    if saved.backward and not (saved.packs or saved.packed):
        return Figure(
            amount=None,
            missing=(
                "backward ran and nothing was packed in the region; open the region before the "
                "forward whose activations are meant"
            ),
        )
    held: SavedBytes = saved
    if unmatched := unmatched_phase(reading, narrowing):
        return Figure(amount=None, unmatched=unmatched)
    if narrowing.phase is not None:
        in_phase = reading.phases[narrowing.phase].saved
        assert in_phase is not None, "the region's saved activations were measured"
        held = in_phase
    return Figure(amount=getattr(held, argument), breakdown=saved)


SAVED_ACTIVATIONS = Measure(
    noun="saved_activations",
    arguments=_ARGUMENTS,
    narrowings=("rank", "world_size", "region", "phase"),
    read=_read,
    in_phases=tuple(_ARGUMENTS),
    vacuous_at_zero=tuple(_ARGUMENTS),
)
