"""A world's benchmark becomes one of the session's. Runs in the session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from pytest_shardcheck.benchmark.info import extra_info
from pytest_shardcheck.vocabulary.readings import Reading
from pytest_shardcheck.vocabulary.specs import WorldSpec


def deliver(
    item: pytest.Item,
    spec: WorldSpec,
    from_ranks: Mapping[int, Mapping[str, Any]],
    readings: Iterable[Reading],
) -> None:
    """Add what the ranks of ``item`` timed to the session's table, files and comparisons.

    Args:
        item: The test.
        spec: Its world.
        from_ranks: What each rank's fixture had to report, by rank.
        readings: What the ranks measured.
    """
    timed = next((its for its in from_ranks.values() if "seconds" in its), None)
    completed = [rank for rank, its in from_ranks.items() if its["completed"]]
    if timed is None or len(completed) < spec.size:
        return
    from pytest_shardcheck.benchmark import _private

    given = {rank: its["extra_info"] for rank, its in from_ranks.items()}
    inside = list(dict.fromkeys(name for its in from_ranks.values() for name in its["inside"]))
    callspec = getattr(item, "callspec", None)
    _private.add_result(
        item.config,
        _private.Result(
            name=item.name,
            fullname=item.nodeid,
            group=timed["group"],
            param=callspec.id if callspec is not None else None,
            params=_params(callspec.params if callspec is not None else {}, spec),
            extra_info=extra_info(spec, readings, inside, given),
            options=timed["options"],
            iterations=timed["iterations"],
            seconds=timed["seconds"],
            cprofile_stats=_private.profile_from(timed["profile"]),
        ),
    )


def _params(params: Mapping[str, Any], spec: WorldSpec) -> dict[str, Any]:
    """Return a test's parameters with its world among them: ``--benchmark-group-by=param:world``.

    Without our own: a specification is no parameter that anybody gave.
    """
    own = {name: value for name, value in params.items() if not isinstance(value, WorldSpec)}
    return {"world": spec.id} | own
