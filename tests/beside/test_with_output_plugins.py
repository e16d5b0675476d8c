"""Plugins that write reports: a world's failure and its ranks' output are in each of them."""

from __future__ import annotations

import html
from xml.etree import ElementTree

import pytest

WORLDS = """
    import pytest
    import torch.distributed as dist

    pytestmark = pytest.mark.world_size(2)

    def test_passes(process_group, record_property, world):
        record_property("size", world.size)
        print(f"quiet words of {world.rank}")

    def test_fails(world):
        print(f"printed by {world.rank}")
        assert world.rank + 2 == 2

    @pytest.fixture
    def broken(world):
        raise RuntimeError(f"set up by {world.rank}")

    def test_error(broken):
        pass

    def test_skips(world):
        pytest.skip("no need")

    def test_the_last(process_group):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def sessions(run_two_sessions):
    """Two sessions with all that are installed: sugar and instafail both own the terminal."""
    one = ["--junitxml=junit.xml", "-o", "junit_logging=all"]
    other = []
    if has("pytest_instafail"):
        one.append("--instafail")
    if has("pytest_sugar"):
        other.append("--force-sugar")
    if has("pytest_html"):
        other += ["--html=report.html", "--self-contained-html"]
    files = {"test_output.py": WORLDS}
    return run_two_sessions((files, "-v", *one), (files, "-v", *other))


@pytest.fixture
def one(sessions):
    return sessions[0]


@pytest.fixture
def other(sessions):
    return sessions[1]


def has(module: str) -> bool:
    try:
        pytest.importorskip(module)
    except pytest.skip.Exception:
        return False
    return True


def assert_all_is_told(text: str) -> None:
    assert "rank 1 of 2 failed in its call" in text
    assert "assert (1 + 2) == 2" in text
    assert "printed by 1" in text
    assert "ranks 0-1 of 2 failed in their setup" in text or "failed in its setup" in text
    assert "set up by 0" in text


def test_they_write_once_and_not_in_ranks(one, other):
    html_report = {"report.html"} if has("pytest_html") else set()
    for session, names in ((one, {"junit.xml"}), (other, html_report)):
        assert session.returncode == pytest.ExitCode.TESTS_FAILED
        assert session.processes_left() == []
        assert session.files_left() == []
        found = {
            path.name for path in session.temporary.parent.iterdir() if path.name[0] not in "._"
        }
        assert found == {"pytest.ini", "temporary", "test_output.py"} | names


def test_junit(one):
    root = ElementTree.parse(one.temporary.parent / "junit.xml").getroot()
    (suite,) = root.iter("testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 5, "failures": 1, "errors": 1, "skipped": 1}
    cases = {case.get("name"): case for case in root.iter("testcase")}
    assert sorted(cases) == sorted(
        f"test_{name}[world2]" for name in ("passes", "fails", "error", "skips", "the_last")
    )
    failure = cases["test_fails[world2]"].find("failure")
    assert "rank 1" in failure.get("message")
    assert "rank 1 of 2 failed in its call" in failure.text
    assert "assert (1 + 2) == 2" in failure.text
    out = cases["test_fails[world2]"].findtext("system-out")
    assert "printed by 0" in out
    assert "printed by 1" in out
    assert "set up by 0" in cases["test_error[world2]"].find("error").text
    assert "no need" in cases["test_skips[world2]"].find("skipped").get("message")
    passed = cases["test_passes[world2]"]
    assert [(p.get("name"), p.get("value")) for p in passed.iter("property")] == [("size", "2")]
    assert "quiet words of 1" in passed.findtext("system-out")


def test_html(other):
    pytest.importorskip("pytest_html")
    text = (other.temporary.parent / "report.html").read_text()
    text = html.unescape(html.unescape(text)).replace("\\n", "\n").replace('\\"', '"')
    assert_all_is_told(text)
    for count in ("2 Passed", "1 Failed", "1 Errors", "1 Skipped"):
        assert count in text


def test_sugar(other):
    pytest.importorskip("pytest_sugar")
    assert "Test session starts" in other.out, "sugar's own header"
    assert_all_is_told(other.out)
    last = other.out[other.out.index("Results (") :]
    for count in ("2 passed", "1 failed", "1 error", "1 skipped"):
        assert count in last


def test_instafail(one):
    pytest.importorskip("pytest_instafail")
    # At once: before the next test has ended, and not again in the end.
    at_once, _, rest = one.out.partition("test_the_last")
    assert_all_is_told(at_once)
    assert "rank 1 of 2 failed" not in rest
