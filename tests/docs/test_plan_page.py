"""docs/plan.md shows what `shardcheck plan` prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pytest_shardcheck.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"
SHOWN = re.findall(r"^```console\n\$ shardcheck (.*)\n(?s:(.*?))^```$", PAGE.read_text(), re.M)


def test_there_is_something_to_compare() -> None:
    assert len(SHOWN) >= 3


@pytest.mark.parametrize(("command", "output"), SHOWN)
def test_the_page_shows_what_the_command_prints(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    beginning, cut, _ = output.partition("\n[...]\n")
    printed = capsys.readouterr().out
    assert printed.startswith(beginning) if cut else printed == output


def test_the_picture_is_small() -> None:
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", PAGE.read_text())
    assert (PAGE.parent / picture).stat().st_size < 100_000
