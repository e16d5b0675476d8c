"""The page in a real browser: it opens, asks for nothing, sorts, finds, draws and answers."""

from __future__ import annotations

import re

import pytest

VIEWS = {
    "phone-dark": ({"width": 390, "height": 844}, "dark"),
    "desktop-light": ({"width": 1280, "height": 900}, "light"),
}


@pytest.fixture
def opened(chromium, page_path):
    """Open the page in a view; whatever it complains of or asks for fails the test."""
    contexts, troubles = [], []

    def open_(view="desktop-light", fragment=""):
        viewport, scheme = VIEWS[view]
        context = chromium.new_context(
            viewport=viewport, color_scheme=scheme, has_touch=view.startswith("phone")
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: troubles.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append(f"a dialog: {dialog.message}"))
        url = f"file://{page_path}"
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((url, "blob:", "data:"))
                else troubles.append(request.url)
            ),
        )
        page.goto(url + fragment)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert troubles == []


def names(page):
    return [text.strip() for text in page.locator("tr.test td.name").all_inner_texts()]


def drawn(page, name):
    """Open a test and return its charts once they are drawn."""
    page.locator("tr.test", has_text=name).click()
    charts = page.locator("tr.detail .chart")
    charts.first.scroll_into_view_if_needed()
    page.wait_for_selector("tr.detail .chart[data-drawn]")
    return charts


def colours(chart, places):
    """Return the colours of a chart's pixels, each as (red, green, blue, opacity)."""
    return [
        tuple(colour)
        for colour in chart.locator("canvas").first.evaluate(
            """(canvas, places) => {
                const copy = document.createElement("canvas");
                const size = { width: canvas.clientWidth, height: canvas.clientHeight };
                Object.assign(copy, size);
                const context = copy.getContext("2d", { willReadFrequently: true });
                context.drawImage(canvas, 0, 0, size.width, size.height);
                return places.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data]);
            }""",
            places,
        )
    ]


@pytest.mark.parametrize("view", VIEWS)
def test_it_opens_and_fits(opened, view):
    page = opened(view)
    assert page.locator("#counts").inner_text() == "12 world tests: 1 failed, 1 skipped, 10 passed"
    assert page.locator("#about").inner_text() == "torch 2.13.0"
    charts = drawn(page, "test_0")
    assert charts.count() == 1  # the ranks are alike
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= VIEWS[view][0]["width"]
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == view.endswith("dark")


def test_outcomes_come_first_and_columns_sort(opened):
    page = opened()
    assert names(page)[0].endswith("test_10[world2]")
    assert "test_evil" in names(page)[1]
    page.get_by_role("button", name="state").click()
    assert [name[-11:] for name in names(page)[:2]] == ["t_0[world2]", "t_1[world2]"]
    assert "test_evil" in names(page)[-1]  # without a figure
    page.get_by_role("button", name="state").click()
    assert names(page)[0].endswith("test_10[world2]")
    assert "test_evil" in names(page)[-1]
    sorted_by = page.locator("#tests > thead th[aria-sort]")
    assert (sorted_by.inner_text().strip().lower()[:5], sorted_by.get_attribute("aria-sort")) == (
        "state",
        "ascending",
    )
    page.get_by_role("button", name="collectives").click()
    assert names(page)[0].endswith("test_10[world2]")


def test_a_phone_sorts_by_a_list(opened):
    page = opened("phone-dark")
    assert not page.locator("#tests > thead").is_visible()
    page.get_by_label("Sort by").select_option(label="peak")
    assert names(page)[0].endswith("test_10[world2]")
    page.get_by_label("Sort by").select_option(label="state")
    assert names(page)[0].endswith("test_0[world2]")


def test_search(opened):
    page = opened()
    search = page.get_by_label("Search")
    search.fill("TEST_M test_1")
    assert [name.rpartition("::")[2] for name in names(page)] == [
        "test_10[world2]",
        "test_1[world2]",
    ]
    search.fill("failed")
    assert len(names(page)) == 1
    search.fill("</script>")
    assert len(names(page)) == 1
    search.fill("nobody")
    assert names(page) == []
    assert page.locator("#none").is_visible()
    search.fill("")
    assert len(names(page)) == 12


def test_texts_of_tests_are_text(opened):
    page = opened()
    row = page.locator("tr.test", has_text="onerror=alert(1)")
    assert row.count() == 1
    row.click()
    assert page.locator("img").count() == 0
    page.locator("tr.test", has_text="test_10").click()
    assert page.locator("pre.failure").inner_text() == "max_memory(peak): <b>crossed</b>"


def test_hovering_tells_what_was_alive(opened):
    page = opened()
    chart = drawn(page, "test_0").first
    box = chart.bounding_box()
    left, right = 76, 16  # of the grids in a wide window
    at = left + 0.61 * (box["width"] - left - right)
    page.mouse.move(box["x"] + at, box["y"] + 150)
    tip = page.locator(".tip")
    tip.wait_for()
    text = re.sub(r"\s+", " ", tip.inner_text())
    assert text.startswith("operation 60 · 6.0 ms · backward · step")
    assert "Live: 9.0 kB (9,000 B)" in text
    assert "4.0 kB parameters" in text
    assert "4.0 kB float32 [1000] temporaries in layers.3 at train.py:12" in text
    assert "2.0 kB 2 \u00d7 float32 [20, 25] parameters" in text
    assert "Saved activations: 3.0 kB" in text
    assert "5.0 kB all_reduce in group dp" in text
    page.mouse.move(box["x"] + left + 0.85 * (box["width"] - left - right), box["y"] + 150)
    page.wait_for_function("document.querySelector('.tip').innerText.includes('operation 80')")
    text = tip.inner_text()
    assert "temporaries" not in text
    assert "optimizer" in text
    assert "all_reduce" not in text


def test_what_is_drawn(opened):
    page = opened()
    chart = drawn(page, "test_0").first
    inner = chart.bounding_box()["width"] - 76 - 16
    top, height, most = 29, 220, 10_000 * 1.06  # of the memory's grid, and of its axis

    def at(*places):
        """Return the colours where an operation is, and a size."""
        return colours(
            chart,
            [[76 + inner * at / 100, top + height * (1 - size / most)] for at, size in places],
        )

    parameters, gradients, temporaries = at((30, 2_500), (62, 4_500), (62, 7_000))
    assert parameters[2] > parameters[0] + 50  # blue
    assert gradients[0] > gradients[2] + 50  # orange
    assert temporaries[1] > gradients[1] + 30  # yellow
    # Nothing above the curve but the shade of the phase: none, blue, and green.
    forward, backward, optimizer = at((45, 7_000), (72, 9_300), (85, 7_000))
    assert forward[3] == 0
    assert 0 < backward[3] < 100
    assert 0 < optimizer[3] < 100
    assert backward[2] > backward[1]
    assert optimizer[1] > optimizer[2]
    # The ceiling is a dashed line over its region, and nowhere else.
    dashes = at(*((operation / 10, 10_000) for operation in range(150, 180)))
    beyond = at(*((operation / 10, 10_000) for operation in range(950, 980)))
    assert {red > green + 80 for red, green, *_ in dashes} == {True, False}
    assert {red > green + 80 for red, green, *_ in beyond} == {False}


def test_ranks_that_differ_have_charts_of_their_own_and_zoom_together(opened):
    page = opened()
    charts = drawn(page, "test_10")
    assert page.locator("figcaption").all_inner_texts() == [
        "rank 0 peak 9.0 kB on cpu",
        "rank 1 peak 10.0 kB on cpu",
    ]
    charts.nth(1).scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('[data-drawn]').length === 2")
    zoom = "[...shardcheck.drawn].map((one) => one.chart.getOption().dataZoom[0].start)"
    assert page.evaluate(zoom) == [0, 0]
    page.locator(".tools").get_by_role("button", name="step").click()
    first, second = page.evaluate(zoom)
    assert first == second
    assert 5 < first < 10
    page.locator(".tools").get_by_role("button", name="time").click()
    assert page.evaluate(zoom) == [0, 0]
    axis = "[...shardcheck.drawn].map((one) => one.chart.getOption().xAxis[0].max)"
    assert page.evaluate(axis) == [9_000_000, 9_000_000]


def test_charts_are_drawn_when_a_test_opens_and_gone_when_it_closes(opened):
    page = opened()
    assert page.locator("canvas").count() == 0
    drawn(page, "test_0")
    assert page.locator("canvas").count() > 0
    assert page.evaluate("shardcheck.drawn.size") == 1
    page.locator("tr.test", has_text="test_0").click()
    page.wait_for_function("document.querySelectorAll('canvas').length === 0")
    assert page.evaluate("shardcheck.drawn.size") == 0


def test_a_link_opens_its_test(opened):
    page = opened()
    page.locator("tr.test", has_text="test_3").click()
    fragment = page.evaluate("location.hash")
    again = opened(fragment=fragment)
    again.wait_for_selector("tr.detail table.regions")
    assert again.locator("tr.open").count() == 1
    assert "test_3" in again.locator("tr.open").inner_text()
    assert "ranks 0-1: no timeline" in again.locator("p.note").inner_text()


def test_another_scheme_and_paper_redraw(opened):
    page = opened("phone-dark")
    chart = drawn(page, "test_0").first

    def ink():
        return page.evaluate(
            "[...shardcheck.drawn][0].chart.getOption().tooltip[0].textStyle.color"
        )

    dark = ink()
    page.emulate_media(color_scheme="light")
    page.wait_for_function(
        "(dark) => [...shardcheck.drawn][0].chart.getOption().tooltip[0].textStyle.color !== dark",
        arg=dark,
    )
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "(dark) => [...shardcheck.drawn][0].chart.getOption().tooltip[0].textStyle.color === dark",
        arg=dark,
    )
    page.emulate_media(color_scheme="dark", media="print")
    page.wait_for_function(
        "(dark) => [...shardcheck.drawn][0].chart.getOption().tooltip[0].textStyle.color !== dark",
        arg=dark,
    )
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#controls").is_visible()
    assert chart.is_visible()


def test_where_javascript_is_off_the_page_says_so(chromium, page_path):
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"file://{page_path}")
    assert "draws with JavaScript" in page.inner_text("noscript")
    context.close()
