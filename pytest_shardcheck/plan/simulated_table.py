"""Plans by simulation → text: what was alive at the peak, and what a step sends, world by world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pytest_shardcheck.plan.questions import Sent, SimulatedStep
from pytest_shardcheck.plan.table import Scale, answer_line, given_size, laid_out, mark
from pytest_shardcheck.vocabulary.memory import LIVE_CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_shardcheck.plan.footprint import Footprint
    from pytest_shardcheck.plan.search import Plan

_NOTHING: Final = Sent(count=0, wire_bytes=0)


def simulated_heading(plans: Sequence[Plan], *, model: str, limit: int | str) -> list[str]:
    """Return the lines that say what was asked and what the model turned out to be."""
    step = _step(plans[0].footprints[0])
    dtypes = ", ".join(step.dtypes)
    lines = [
        f"{model}: {step.parameters:,} parameters in {step.tensors:,} tensors ({dtypes})",
        f"limit per GPU: {given_size(limit)}",
    ]
    if not step.ran:
        lines.append(
            "the function returned no inputs: there are no activations and no forward in this, "
            "only the state and the optimizer's step"
        )
    return lines


def simulated_tables(plans: Sequence[Plan], *, limit: int | str) -> list[str]:
    """Return for each plan what was alive at the peak and what a step sent, and its answer."""
    scale = Scale.of(limit)
    lines: list[str] = []
    for plan in plans:
        lines += ["", *_block(plan, scale)]
    width = max(len(plan.name) for plan in plans)
    return [
        *lines,
        "",
        *(f"{plan.name:{width}}  {answer_line(plan.answer, scale)}" for plan in plans),
    ]


def _block(plan: Plan, scale: Scale) -> Iterator[str]:
    units = _step(plan.footprints[0]).units
    gathered = ", ".join(f"{count} {name}" for name, count in units.items())
    how = f", gathered one at a time: {gathered}" if gathered else ""
    yield plan.name + how
    yield f"{scale.unit} per GPU at the peak of a step (* within the limit):"
    steps = [_step(footprint) for footprint in plan.footprints]
    names = [
        name
        for name in LIVE_CATEGORIES
        if any(scale.shows(one.at_peak.get(name, 0)) for one in steps)
    ]
    totals = (f"{scale.number(one.total)}{mark(one, plan.answer.limit)}" for one in plan.footprints)
    rows = [
        ["GPUs", *(f"{one.world:,} " for one in plan.footprints)],
        *([name, *_sizes((one.at_peak.get(name, 0) for one in steps), scale)] for name in names),
        ["total", *totals],
        ["state between steps", *_sizes((one.state for one in steps), scale)],
    ]
    for name in dict.fromkeys(name for one in steps for name in one.collectives):
        sent = [one.collectives.get(name, _NOTHING) for one in steps]
        rows.append([f"{name} calls", *(f"{one.count:,} " for one in sent)])
        sizes = _sizes((one.wire_bytes for one in sent), scale)
        rows.append([f"{name} {scale.unit} sent", *sizes])
    yield from laid_out(rows)


def _sizes(sizes: Iterable[int], scale: Scale) -> Iterator[str]:
    return (f"{scale.number(size)} " for size in sizes)


def _step(footprint: Footprint) -> SimulatedStep:
    assert footprint.step is not None, "of a simulation"
    return footprint.step
