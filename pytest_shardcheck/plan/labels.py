"""Where the labels of a chart stand: each where it covers no other, and as few lines as can be."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

_BOX: Final = {"boxstyle": "round,pad=0.2", "facecolor": "white"}
_PAD: Final = 4  # pixels around a text, its box included
# Away from a point: to each side, from near to far.
_ASIDE: Final = (-1, 1)
_AWAY: Final = (18, 40, 62, 84, 106, 128)
_ALONG: Final = (0.01, 0.99, 0.75, 0.5, 0.25)

# What is worst about a place: outside of the axes, on another label, on a line; then how far.
_OUTSIDE: Final = 1000
_ON_LABEL: Final = 100
_ON_LINE: Final = 5


class Labels:
    """Put labels into axes whose lines and limits are final, one after the other."""

    def __init__(self, figure: Figure, axes: Axes) -> None:
        """Measure the axes of a figure that has been laid out."""
        self._axes = axes
        # Points, unlike pixels, are the same in every format and resolution.
        self._points_per_pixel = 72 / figure.dpi
        self._lines = [line.get_transform().transform_path(line.get_path()) for line in axes.lines]
        # A line of one point is a mark, which no label may cover.
        marks = [path.get_extents() for path in self._lines if len(path) == 1]
        self._taken = [mark.padded(_PAD) for mark in marks]

    def beside(self, text: str, at: tuple[float, float], colour: str) -> None:
        """Label a point of the axes, with a line that leads to it."""
        x, y = self._axes.transData.transform(at)
        width, height = self._size(text)
        boxes = [
            _box(
                x + aside * away - (width if aside < 0 else 0),
                y + up * away - (height if up < 0 else 0),
                width,
                height,
            )
            for away, aside, up in product(_AWAY, _ASIDE, (-1, 1, 0))
        ]
        self._put(text, boxes, colour, edge=colour, at=at)

    def along(self, text: str, height: float, colour: str) -> None:
        """Label a horizontal line, above or below it."""
        frame = self._axes.bbox
        y = self._axes.transData.transform((1, height))[1]
        width, tall = self._size(text)
        boxes = [
            _box(frame.x0 + share * (frame.width - width), y + gap, width, tall)
            for gap, share in product((_PAD, -tall - _PAD), _ALONG)
        ]
        self._put(text, boxes, colour, edge="none")

    def _put(
        self,
        text: str,
        boxes: Iterable[Bbox],
        colour: str,
        *,
        edge: str,
        at: tuple[float, float] | None = None,
    ) -> None:
        _, _, best = min((self._badness(box), place, box) for place, box in enumerate(boxes))
        self._taken.append(best)
        points = self._points_per_pixel
        arrow: dict[str, Any] = {"arrowstyle": "-", "color": colour, "linewidth": 0.8}
        label = self._axes.annotate(
            text,
            xy=at or (0, 0),
            xycoords="data" if at else "axes fraction",
            xytext=((best.x0 + _PAD) * points, (best.y0 + _PAD) * points),
            textcoords="figure points",
            color="black" if at else colour,
            va="bottom",
            bbox={**_BOX, "edgecolor": edge},
            arrowprops=arrow if at else None,
            zorder=5,
        )
        label.set_in_layout(False)  # it would move the axes under the other labels

    def _badness(self, box: Bbox) -> int:
        frame = self._axes.bbox
        inside = frame.x0 <= box.x0 and box.x1 <= frame.x1
        inside = inside and frame.y0 <= box.y0 and box.y1 <= frame.y1
        labels = sum(1 for taken in self._taken if taken.overlaps(box))
        lines = sum(1 for line in self._lines if line.intersects_bbox(box, filled=False))
        return _OUTSIDE * (not inside) + _ON_LABEL * labels + _ON_LINE * lines

    def _size(self, text: str) -> tuple[float, float]:
        trial = self._axes.annotate(text, (0, 0), xycoords="figure pixels")
        extent = trial.get_window_extent()
        trial.remove()
        return extent.width + 2 * _PAD, extent.height + 2 * _PAD


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    from matplotlib.transforms import Bbox

    return Bbox.from_bounds(x, y, width, height)
