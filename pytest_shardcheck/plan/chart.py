"""Plans → a picture, by matplotlib (an extra): memory per GPU against the number of GPUs."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from pytest_shardcheck.plan.labels import Labels
from pytest_shardcheck.plan.table import Scale, given_size
from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pytest_shardcheck.plan.footprint import Footprint
    from pytest_shardcheck.plan.search import Plan

_T = TypeVar("_T")
# Okabe and Ito's colours, told apart by most people who see few of them.
_OF_STAGE: Final = {
    "ZeRO-0": "#E69F00",
    "ZeRO-1": "#56B4E9",
    "ZeRO-2": "#009E73",
    "ZeRO-3": "#0072B2",
}
_OF_OTHERS: Final = ("#CC79A7", "#7B4FA3", "#999999")
# A date in the file would make each run's picture another one.
_NO_DATE: Final[Mapping[str, dict[str, None]]] = {
    "svg": {"Date": None},
    "svgz": {"Date": None},
    "pdf": {"CreationDate": None},
}
_RED: Final = "#C00000"
_DASHES: Final[tuple[Literal["-", "--", "-.", ":"], ...]] = ("-", "--", "-.", ":")
_MOST_TICKS: Final = 12
_DPI: Final = 110
_WIDTH: Final = 400  # of the axes beside a legend, in points (a 72nd of an inch)


def check_chart(path: str | Path) -> str:
    """Return the format of a chart at `path`, by its extension.

    Raises:
        UsageError: matplotlib is absent, it writes no such format, or the folder is missing.
    """
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ModuleNotFoundError:
        raise UsageError(
            "a chart needs matplotlib: pip install 'pytest-shardcheck[plots]'"
        ) from None
    known = FigureCanvasBase.get_supported_filetypes()
    extension = Path(path).suffix.removeprefix(".").lower()
    if extension not in known:
        seen = f"the extension .{extension}" if extension else "no extension"
        raise UsageError(f"chart {path}: {seen}; expected one of {', '.join(sorted(known))}")
    if not Path(path).parent.is_dir():
        raise UsageError(f"chart {path}: there is no folder {Path(path).parent}")
    return extension


def save_chart(plans: Sequence[Plan], *, limit: int | str, path: str | Path, title: str) -> None:
    """Draw a line for each plan over its footprints, the limit, and each smallest world.

    The file is written whole or not at all, in the format that its extension names.

    Raises:
        UsageError: as `check_chart` does, or the file can't be written.
    """
    extension = check_chart(path)
    import matplotlib.style

    target = Path(path)
    # What a user's own style sets (sizes, fonts, TeX) would make another picture of it.
    with matplotlib.style.context("default"):
        figure = draw(plans, limit=limit, title=title)
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                figure.savefig(file, format=extension, dpi=_DPI, metadata=_NO_DATE.get(extension))
            temporary.replace(target)
        except OSError as error:
            raise UsageError(f"chart {path}: {error.strerror}") from error
        finally:
            temporary.unlink(missing_ok=True)


def draw(plans: Sequence[Plan], *, limit: int | str, title: str) -> Figure:
    """Draw what `save_chart` saves."""
    from matplotlib.figure import Figure

    scale = Scale.of(limit)
    unit = parse_size(f"1 {scale.unit}")
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    colours = _colours(plans)
    variants = list(dict.fromkeys(plan.variant for plan in plans))
    for plan in plans:
        axes.plot(
            [one.world for one in plan.footprints],
            [one.total / unit for one in plan.footprints],
            color=colours[plan.name],
            linestyle=_cycled(_DASHES, variants.index(plan.variant)),
            linewidth=2,
            # A formula has all worlds; of a simulation nothing is known between its points.
            marker="o" if plan.answer.least.step is not None else "",
            markersize=4,
        )
    ceiling = parse_size(limit) / unit
    axes.axhline(ceiling, color=_RED, linewidth=1.2, zorder=1.5)
    _log_axes(axes, plans, unit, ceiling)
    _legends(axes, colours, variants)
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("GPUs")
    axes.set_ylabel(f"memory per GPU ({scale.unit})")
    _mark_answers(axes, plans, unit, colours)
    figure.draw_without_rendering()  # labels are placed in axes that are laid out
    labels = Labels(figure, axes)
    told = set()
    for plan, fits in _answers(plans):
        text = f"{plan.name}: {_gpus(fits.world)}"
        if text not in told:  # of HSDP's variants, which may all fit from one world on
            labels.beside(text, (fits.world, fits.total / unit), colours[plan.name])
        told.add(text)
    labels.along(f"limit {given_size(limit)}", ceiling, _RED)
    return figure


def _log_axes(axes: Axes, plans: Sequence[Plan], unit: int, ceiling: float) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shown = [
        *(fits for _, fits in _answers(plans)),
        *(one for plan in plans for one in plan.footprints),
    ]
    worlds, sizes = [one.world for one in shown], [one.total / unit for one in shown]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(min(worlds), max(worlds) * 1.02)
    axes.set_ylim(min(*sizes, ceiling) / 3, max(*sizes, ceiling) * 1.5)
    for axis, ticks in (
        (axes.xaxis, _powers_of_two(worlds)),
        (axes.yaxis, _steps(axes.get_ylim())),
    ):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,.10g}"))
    axes.grid(color="#DDDDDD", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _powers_of_two(worlds: Sequence[int]) -> list[float]:
    """Return those within; each second or third where their labels would run into each other."""
    first, last = (min(worlds) - 1).bit_length(), max(worlds).bit_length()
    label = 6 * (len(f"{2 ** (last - 1):,}") + 1)
    each = -(-label * (last - first) // _WIDTH) or 1
    return [2.0**power for power in range(first, last, each)]


def _steps(limits: tuple[float, float]) -> list[float]:
    """Return 1, 2, 5, 10, ... between the limits; fewer of each decade where these are many."""
    low, high = limits
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in decades for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= _MOST_TICKS:
            return ticks
    return ticks[:: -(-len(ticks) // _MOST_TICKS)]


def _mark_answers(axes: Axes, plans: Sequence[Plan], unit: int, colours: Mapping[str, str]) -> None:
    for plan, fits in _answers(plans):
        at = (fits.world, fits.total / unit)
        axes.plot(*at, marker="o", color=colours[plan.name], markersize=7, zorder=4)


def _answers(plans: Sequence[Plan]) -> list[tuple[Plan, Footprint]]:
    found = [(plan, plan.answer.fits) for plan in plans if plan.answer.fits is not None]
    return sorted(found, key=lambda answer: (answer[1].world, -answer[1].total))


def _gpus(world: int) -> str:
    return "1 GPU" if world == 1 else f"{world:,} GPUs"


def _legends(axes: Axes, colours: Mapping[str, str], variants: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in colours.items()
    ]
    if len(variants) > 1:
        handles += [
            Line2D([], [], color="#555555", linestyle=_cycled(_DASHES, place), label=variant)
            for place, variant in enumerate(variants)
        ]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _colours(plans: Sequence[Plan]) -> dict[str, str]:
    """Give each name its colour: a stage the same one in every chart."""
    names = list(dict.fromkeys(plan.name for plan in plans))
    others = [name for name in names if name not in _OF_STAGE]
    return {name: _OF_STAGE.get(name) or _cycled(_OF_OTHERS, others.index(name)) for name in names}


def _cycled(choices: tuple[_T, ...], place: int) -> _T:
    return choices[place % len(choices)]
