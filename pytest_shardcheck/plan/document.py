"""Plans → what `json` can write. All sizes are integers in bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pytest_shardcheck.plan.table import Scale, answer_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_shardcheck.formulas import Accounting
    from pytest_shardcheck.plan.footprint import Footprint
    from pytest_shardcheck.plan.search import Plan

SCHEMA_VERSION: Final = 1


def document(
    plans: Sequence[Plan], *, params: int, accounting: Accounting, limit: int | str
) -> dict[str, Any]:
    """Return the question and every plan's answer and footprints."""
    each = {
        "name": accounting.name,
        "bytes_per_parameter": accounting.bytes_per_parameter,
        "components": [
            {"name": one.name, "dtype": one.dtype, "bytes": one.size}
            for one in accounting.components
        ],
    }
    return _document(plans, {"params": params, "accounting": each}, limit)


def simulated_document(plans: Sequence[Plan], *, model: str, limit: int | str) -> dict[str, Any]:
    """Return the same of a model that was simulated; its footprints have the `step` of a rank."""
    return _document(plans, {"model": model}, limit)


def _document(plans: Sequence[Plan], asked: dict[str, Any], limit: int | str) -> dict[str, Any]:
    scale = Scale.of(limit)
    return {
        "schema_version": SCHEMA_VERSION,
        **asked,
        "limit": plans[0].answer.limit if plans else None,
        "plans": [_plan(plan, scale) for plan in plans],
    }


def _plan(plan: Plan, scale: Scale) -> dict[str, Any]:
    answer = plan.answer
    return {
        "name": plan.name,
        "variant": plan.variant,
        "smallest_world": answer.world,
        "answer": answer_line(answer, scale),
        "fits": None if answer.fits is None else _footprint(answer.fits, answer.limit),
        "least": _footprint(answer.least, answer.limit),
        "shard_that_fits": answer.shard,
        "worlds": [_footprint(one, answer.limit) for one in plan.footprints],
    }


def _footprint(footprint: Footprint, limit: int) -> dict[str, Any]:
    step = {} if footprint.step is None else {"step": footprint.step.to_json()}
    return {
        "world": footprint.world,
        "shards": footprint.shards,
        "replicas": footprint.replicas,
        "total": footprint.total,
        "state": footprint.state,
        "fits": footprint.total <= limit,
        "parts": {part.name: part.bytes for part in footprint.parts},
        **step,
    }
