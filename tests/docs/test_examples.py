"""The examples of the README and of docs/ run, and say what the README shows."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def file_of(page: Path, number: int, text: str) -> str:
    """Return where a block lies: each page has a folder, and one block may be its conftest."""
    folder = "_".join(page.relative_to(ROOT).with_suffix("").parts).lower()
    first = text.partition("\n")[0]
    return f"{folder}/conftest.py" if first == "# conftest.py" else f"{folder}/test_{number}.py"


EXAMPLES = {
    file_of(page, number, text): text
    for page in PAGES
    # The examples of one fail, that is what they are for; those of the other are long, and have a
    # test of their own.
    if page.name not in ("messages.md", "tutorial.md")
    for number, text in enumerate(blocks(page, "python"))
}


def test_every_example_passes(run_session):
    examples, options = EXAMPLES, ["-p", "no:cacheprovider", "--import-mode=importlib"]
    if find_spec("syrupy"):
        options.append("--snapshot-update")
    else:
        examples = {n: text for n, text in EXAMPLES.items() if "shardcheck.snapshot" not in text}
    session = run_session(examples, *options)
    assert set(session.outcomes) == {"passed"}, session.out
    tests = [name for name in examples if not name.endswith("conftest.py")]
    assert session.outcomes["passed"] >= len(tests)


def test_the_readme_shows_the_message_that_its_mistake_gives(run_session):
    (example,) = blocks(ROOT / "README.md", "python")
    (message,) = blocks(ROOT / "README.md", "text")
    broken = example.replace("fully_shard(layer, mesh=device_mesh)", "pass")
    assert broken != example
    session = run_session({"test_readme.py": broken}, "-k", "world2")
    assert session.outcomes == {"failed": 1}
    assert message in session.out


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_option_and_marker_is_documented():
    reference = (ROOT / "docs" / "reference.md").read_text()
    source = (ROOT / "pytest_shardcheck" / "plugin" / "settings.py").read_text()
    options = re.findall(r'"(--[a-z-]+)"', source)
    inis = re.findall(r'addini\(\s*"(\w+)"', source)
    assert options
    assert inis
    missing = [name for name in (*options, *inis) if f"`{name}`" not in reference]
    assert missing == []


def test_the_gallery_is_what_the_failures_print():
    pytest.importorskip("syrupy")
    from gallery import PAGE, render

    assert render() == PAGE.read_text(), "write it anew: python tests/docs/gallery.py"
