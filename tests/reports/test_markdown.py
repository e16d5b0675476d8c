from __future__ import annotations

from pytest_shardcheck.reports.markdown import cell, code, cut, fenced


def test_text_in_a_cell_is_no_markup():
    assert cell("a|b *c*\n<d> `e`") == "a\\|b \\*c\\* \\<d\\> \\`e\\`"


def test_code_may_have_backticks():
    assert code("a") == "`a`"
    assert code("a`b|c") == "``a`b\\|c``"
    assert code("`a``b") == "``` `a``b ```"


def test_a_block_may_have_fences():
    assert fenced("a\n```\nb\n") == ["````text", "a", "```", "b", "````"]


def test_what_is_cut_is_closed():
    lines = ["<details>", "", *fenced("\n".join(["```x"] * 100)), "</details>"]
    text = cut(lines, 450)
    assert len(text) <= 450
    *_, fence, _, closed, _, last = text.splitlines()
    assert (fence, closed) == ("````", "</details>")
    assert last.endswith("lines left out.)")
    assert cut(lines, 10_000) == "\n".join(lines) + "\n"
