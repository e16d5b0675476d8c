"""The picture: what is drawn, in which format, and that it is whole or not there."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_shardcheck import UsageError
from pytest_shardcheck.plan import ClosedForm, Plan, plan_closed_form, save_chart

GB = 10**9
FIRST_BYTES = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


def plans(limit: int | str = "80 GB", worlds: Any = None, **options: Any) -> list[Plan]:
    worlds = [2**power for power in range(11)] if worlds is None else worlds
    forms = [ClosedForm(**{"params": 70 * GB, "stage": stage, **options}) for stage in range(4)]
    return [plan_closed_form(one, limit=limit, worlds=worlds) for one in forms]


def drawn(found: list[Plan], limit: int | str = "80 GB") -> Any:
    """Draw, and return the axes after all text was laid out."""
    pytest.importorskip("matplotlib")
    from pytest_shardcheck.plan.chart import draw

    figure = draw(found, limit=limit, title="70 billion")
    figure.draw_without_rendering()
    return figure.axes[0]


@pytest.fixture(scope="module")
def plain() -> Any:
    return drawn(plans())


def ticks(axis: Any) -> list[str]:
    low, high = sorted(axis.get_view_interval())
    return [
        label.get_text()
        for at, label in zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
        if low <= at <= high
    ]


def test_there_is_a_line_for_each_plan_and_the_limit(plain: Any) -> None:
    found, axes = plans(), plain
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) > 2]
    for plan, line in zip(found, lines, strict=True):
        assert list(line.get_xdata()) == [one.world for one in plan.footprints]
        assert list(line.get_ydata()) == [one.total / GB for one in plan.footprints]
    assert [80.0, 80.0] in [list(line.get_ydata()) for line in axes.get_lines()]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "ZeRO-0",
        "ZeRO-1",
        "ZeRO-2",
        "ZeRO-3",
    ]


def test_the_limit_and_each_smallest_world_are_marked(plain: Any) -> None:
    assert sorted(text.get_text() for text in plain.texts) == [
        "ZeRO-3: 14 GPUs",
        "limit 80 GB (74.5 GiB)",
    ]
    points = [line.get_xydata().tolist() for line in plain.get_lines()]
    assert [[14.0, 80.0]] in points


def test_nothing_is_marked_where_nothing_fits() -> None:
    axes = drawn(plans(limit="1 B"), limit="1 B")
    assert [text.get_text() for text in axes.texts] == ["limit 1 B"]


def test_ticks_are_plain_numbers(plain: Any) -> None:
    assert ticks(plain.xaxis) == [f"{2**power:,}" for power in range(11)]
    assert ticks(plain.yaxis)[:4] == ["0.5", "1", "2", "5"]
    assert ticks(plain.yaxis)[-3:] == ["200", "500", "1,000"]
    assert plain.get_ylabel() == "memory per GPU (GB)"
    assert drawn(plans(), limit="80 GiB").get_ylabel() == "memory per GPU (GiB)"


@pytest.mark.parametrize(("last", "params"), [(1, 1000), (11, 10**14), (24, 70 * GB)])
def test_tick_labels_do_not_touch(last: int, params: int) -> None:
    axes = drawn(plans(worlds=[2**power for power in range(last + 1)], params=params))
    for axis in (axes.xaxis, axes.yaxis):
        assert 2 <= len(ticks(axis)) <= 13
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        for one, next_one in pairwise(boxes):
            assert not one.overlaps(next_one), ticks(axis)


def test_labels_of_neighbours_do_not_touch() -> None:
    found = plans(tensor_parallel=8, worlds=[8 * 2**power for power in range(8)], limit="60 GB")
    texts = drawn(found, "60 GB").texts
    boxes = [text.get_bbox_patch().get_window_extent() for text in texts]
    assert len(boxes) == 4  # the limit, and stages 1 to 3
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[place + 1 :])


@pytest.mark.parametrize("extension", ["png", "svg", "pdf"])
def test_the_extension_says_the_format(extension: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan.{extension}"
    path.write_text("an older one")
    save_chart(plans(), limit="80 GB", path=path, title="70 billion")
    assert path.read_bytes().startswith(FIRST_BYTES[extension])
    assert [*tmp_path.iterdir()] == [path]


def test_an_svg_has_no_date(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plan.svg"
    save_chart(plans(), limit="80 GB", path=path, title="70 billion")
    assert not re.search(r"<dc:date>|20\d\d-\d\d-\d\d", path.read_text())


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("plan.xyz", r"the extension \.xyz; expected one of .*pdf.*png"),
        ("plan", "no extension; expected one of"),
        ("missing/plan.png", "there is no folder .*missing"),
    ],
)
def test_a_wrong_path_is_refused(name: str, seen: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=seen):
        save_chart(plans(), limit="80 GB", path=tmp_path / name, title="")
    assert [*tmp_path.iterdir()] == []


def test_an_interrupted_chart_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    def half(self: Figure, file: Any, **options: Any) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    path = tmp_path / "plan.png"
    path.write_text("the old one")
    with pytest.raises(UsageError, match="No space left on device"):
        save_chart(plans(), limit="80 GB", path=path, title="")
    assert path.read_text() == "the old one"
    assert [*tmp_path.iterdir()] == [path]


def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "plan.png").mkdir()
    with pytest.raises(UsageError, match=r"chart .*plan.png: Is a directory"):
        save_chart(plans(), limit="80 GB", path=tmp_path / "plan.png", title="")
    assert [*tmp_path.iterdir()] == [tmp_path / "plan.png"]


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # what importing it then raises for
    with pytest.raises(UsageError, match=r"pip install 'pytest-shardcheck\[plots\]'"):
        save_chart(plans(), limit="80 GB", path=tmp_path / "plan.png", title="")
    assert [*tmp_path.iterdir()] == []
