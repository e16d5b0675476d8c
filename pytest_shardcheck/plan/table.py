"""Plans → text. Sizes are in the unit of the limit: GB where it was given in GB, GiB in GiB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_shardcheck.vocabulary.units import (
    counterpart,
    format_bytes,
    in_unit,
    parse_size,
    written_unit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pytest_shardcheck.formulas import Accounting
    from pytest_shardcheck.plan.footprint import Footprint, Part
    from pytest_shardcheck.plan.search import Answer, Plan

_GAP = "  "
_FITS = "*"


@dataclass(frozen=True, slots=True)
class Scale:
    """The one unit in which sizes are written beside each other, and its decimals."""

    unit: str
    digits: int

    @classmethod
    def of(cls, limit: int | str) -> Scale:
        """Take the unit that `limit` is written in, with as many decimals as 1 % of it needs."""
        unit = written_unit(limit)
        units = parse_size(limit) / parse_size(f"1 {unit}")
        return cls(unit, 1 if units >= 10 else 2 if units >= 1 else 3)

    def number(self, size: int) -> str:
        """Write a size without the unit."""
        return in_unit(size, self.unit, self.digits)

    def size(self, size: int) -> str:
        """Write a size with the unit; to the byte where it would be rounded to nothing."""
        lost = size and not self.shows(size)
        return format_bytes(size) if lost else f"{self.number(size)} {self.unit}"

    def shows(self, size: int) -> bool:
        """Tell whether anything is left of a size when it is written in this unit."""
        return bool(float(self.number(size).replace(",", "")))


def given_size(given: int | str) -> str:
    """Write a size as it was given, with the other system beside it: "80 GB (74.5 GiB)"."""
    unit = written_unit(given)
    text = given if isinstance(given, str) else Scale.of(given).size(given)
    other = counterpart(unit)
    return text if other == unit else f"{text} ({in_unit(parse_size(given), other)} {other})"


def heading(
    *,
    params: int,
    accounting: Accounting,
    limit: int | str,
    given: Mapping[str, int | str] | None = None,
) -> list[str]:
    """Return the lines that say what was asked: parameters, accounting, limit, what else is given.

    Sizes are written in both systems here, so that nobody takes GiB for GB.
    """
    each = accounting.bytes_per_parameter
    of_each = ", ".join(f"{one.name} {one.size} ({one.dtype})" for one in accounting.components)
    sizes = {"limit per GPU": limit, **(given or {})}
    return [
        f"{params:,} parameters at {each} B = {Scale.of(limit).size(params * each)} in all",
        f"accounting: {accounting.name}",
        f"bytes per parameter: {of_each}",
        *(f"{name}: {given_size(size)}" for name, size in sizes.items()),
    ]


def tables(plans: Sequence[Plan], *, limit: int | str) -> list[str]:
    """Return a table of worlds and an answer for each plan; a block for each variant.

    Where there are several variants, a table of their smallest worlds goes before.
    """
    scale = Scale.of(limit)
    variants = list(dict.fromkeys(plan.variant for plan in plans))
    lines = _overview(plans, variants) if len(variants) > 1 else []
    for variant in variants:
        its = [plan for plan in plans if plan.variant == variant]
        lines += ["", *([f"{variant}:"] if variant else []), *_block(its, scale)]
    return lines


def answer_line(answer: Answer, scale: Scale) -> str:
    """Say from which world on it fits, with what one GPU holds there; or never, and why."""
    if answer.least.step is not None:
        return _tried(answer, scale)
    if answer.fits is None:
        return _never(answer, scale)
    room = answer.limit - answer.fits.total
    spare = f"{scale.size(room)} to spare" if room else "nothing to spare"
    held = _listed(answer.fits.parts, scale)
    total = scale.size(answer.fits.total)
    return f"fits from {_world(answer.fits)}: {total} each ({held}), {spare}"


def _never(answer: Answer, scale: Scale) -> str:
    least = answer.least
    stay = [part for part in least.parts if not part.divided]
    held = sum(part.bytes for part in stay)
    over = scale.size(least.total - answer.limit)
    # What is divided as far as it goes is some bytes: they are named only where they decide.
    rest = "" if held > answer.limit else f", the smallest shards are {least.total - held:,} B"
    hint = f"; shards of {answer.shard:,} would fit" if answer.shard else ""
    held_by = "more replicas don't help, " if answer.shard else ""
    stays = f"{held_by}{scale.size(held)} stay on every GPU ({_listed(stay, scale)})"
    return f"never: {stays}{rest}, {over} above the limit{hint}"


def _tried(answer: Answer, scale: Scale) -> str:
    """Say which of the simulated worlds fits: between and beyond them nothing is known."""
    if answer.fits is not None:
        room = scale.size(answer.limit - answer.fits.total)
        total = scale.size(answer.fits.total)
        return f"fits at {_world(answer.fits)}: {total} at the peak, {room} to spare"
    least = answer.least
    over = scale.size(least.total - answer.limit)
    stay = [part for part in least.parts if not part.divided]
    held = sum(part.bytes for part in stay)
    named = _listed([part for part in stay if scale.shows(part.bytes)], scale)
    stays = f"{scale.size(held)} stay on every GPU" + (f" ({named})" if named else "")
    tried = f"at {_world(least)} {scale.size(least.total)} at the peak, {over} above the limit"
    if held > answer.limit:
        return f"never: {stays}; {tried}"
    return f"in none of these worlds: {tried}; {stays}, so a larger world may fit"


def _world(footprint: Footprint) -> str:
    gpus = "1 GPU" if footprint.world == 1 else f"{footprint.world:,} GPUs"
    if footprint.replicas == 1 or footprint.shards == 1:
        return gpus
    return f"{gpus} ({footprint.replicas} replicas of {footprint.shards} shards)"


def _listed(parts: Sequence[Part], scale: Scale) -> str:
    return ", ".join(f"{part.name} {scale.number(part.bytes)}" for part in parts)


def _overview(plans: Sequence[Plan], variants: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(plan.name for plan in plans))
    answers = {(plan.variant, plan.name): plan.answer.world for plan in plans}

    def cell(variant: str, name: str) -> str:
        world = answers[variant, name]
        return "never" if world is None else f"{world:,}"

    rows = [(variant, *(cell(variant, name) for name in names)) for variant in variants]
    return ["", "smallest world:", *laid_out([("", *names), *rows])]


def _block(plans: Sequence[Plan], scale: Scale) -> Iterator[str]:
    worlds = sorted({one.world for plan in plans for one in plan.footprints})
    if worlds:
        of_one = f" of {worlds[0]:,}" if len(worlds) == 1 else ""
        yield f"{scale.unit} per GPU{of_one} ({_FITS} within the limit):"
        # The star hangs beyond the column, so that digits stand below digits.
        names = [f"{plan.name} " for plan in plans]
        rows = _part_rows(plans, worlds[0], scale) if of_one else _world_rows(plans, worlds, scale)
        yield from laid_out([["" if of_one else "GPUs", *names], *rows])
        yield ""
    width = max(len(plan.name) for plan in plans)
    for plan in plans:
        yield f"{plan.name:{width}}{_GAP}{answer_line(plan.answer, scale)}"


def _world_rows(plans: Sequence[Plan], worlds: Sequence[int], scale: Scale) -> Iterator[list[str]]:
    for world in worlds:
        yield [f"{world:,}", *(_cell(plan, world, scale) for plan in plans)]


def _part_rows(plans: Sequence[Plan], world: int, scale: Scale) -> Iterator[list[str]]:
    footprints = [plan.at(world) for plan in plans]
    held = [{part.name: part.bytes for part in one.parts} if one else {} for one in footprints]
    for name in dict.fromkeys(name for its in held for name in its):
        cells = (scale.number(its[name]) if name in its else "-" for its in held)
        yield [name, *(f"{cell} " for cell in cells)]
    yield ["total", *(_cell(plan, world, scale) for plan in plans)]


def _cell(plan: Plan, world: int, scale: Scale) -> str:
    footprint = plan.at(world)
    if footprint is None:
        return "- "
    return f"{scale.number(footprint.total)}{mark(footprint, plan.answer.limit)}"


def mark(footprint: Footprint, limit: int) -> str:
    """Return the star of a footprint within the limit, else the space that it would take."""
    return _FITS if footprint.total <= limit else " "


def laid_out(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines, their columns flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (
            _GAP + _GAP.join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
