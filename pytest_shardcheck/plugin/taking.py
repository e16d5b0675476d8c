"""Take a snapshot in a rank: what is kept of it goes to the session with the report of the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_shardcheck.snapshots import figures_of, parse_rules, plain_value
from pytest_shardcheck.snapshots.fields import Asked
from pytest_shardcheck.snapshots.figures import READING_FIELDS
from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.snapshots import RankSnapshot

if TYPE_CHECKING:
    from pytest_shardcheck.worlds.rank import RankContext

__tracebackhide__ = hide_from_users

_VALUE = "value"


def take(context: RankContext, given: object, name: str | None, asked: Asked) -> None:
    """Keep what a snapshot needs of a reading or of plain data.

    Raises:
        UsageError: An argument is wrong, or it comes too late.
    """
    if context.reported:
        raise UsageError(
            "shardcheck.snapshot after the test body: what ranks keep was sent; call it in the "
            "test or in the setup of a fixture"
        )
    reading = given if isinstance(given, Reading) else None
    name = _name(name, reading)
    if name in context.snapshots:
        raise UsageError(
            f"shardcheck.snapshot: this test has taken a snapshot {name!r}; give each its name="
        )
    value: Any = figures_of(reading) if reading is not None else plain_value(given)
    known = READING_FIELDS if reading is not None else ()
    rules = parse_rules(asked, value, known)
    context.snapshots[name] = RankSnapshot(
        name=name,
        rank=context.rank,
        value=value,
        region=reading.region if reading is not None else None,
        occurrence=reading.occurrence if reading is not None else 0,
        only=rules.only,
        exclude=rules.exclude,
        tolerances=rules.to_text(),
        torch=_torch(),
        gpu=_gpu(context),
    ).to_json()


def _name(given: str | None, reading: Reading | None) -> str:
    if given is None:
        if reading is None:
            return _VALUE
        number = f" #{reading.occurrence}" if reading.occurrence else ""
        return f"{reading.region}{number}"
    if not isinstance(given, str) or not given.strip():
        raise UsageError(f"shardcheck.snapshot(name={given!r}): a name is expected")
    return given


def _torch() -> str:
    import torch

    # What follows the plus is how it was built for this machine.
    return str(torch.__version__).partition("+")[0]


def _gpu(context: RankContext) -> str:
    if context.order.spec.device != "cuda":
        return ""
    import torch

    return str(torch.cuda.get_device_name(context.device))
