"""docs/tutorial.md: its files run, at two layers, and its figures are those of the whole model.

`SHARDCHECK_LLAMA=80` runs them with all layers, which is minutes: then the page's plan and message
are printed, to the byte. Else tests/regression/test_simulated_llama.py has the whole model.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_shardcheck.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
LAYERS = int(os.environ.get("SHARDCHECK_LLAMA", "2"))
TEXT = PAGE.read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(?s:(.*?))^```$", TEXT, re.M))
CONSOLE = re.findall(r"^```console\n\$ shardcheck (.*)\n(?s:(.*?))^```$", TEXT, re.M)
(MISTAKE,) = re.findall(r"^```python\n( +fully_shard\(.*\n)```$", TEXT, re.M)
MESSAGE, NEVER = re.findall(r"^```text\n(?s:(.*?))^```$", TEXT, re.M)
FOLDER = PAGE.with_suffix("")
PARAMS, LAYER = 68_976_648_192, 855_654_400
# Of a step at two layers, with and without resharding, 7.4 and 8.2 GB.
CEILING = "80 GB" if LAYERS == 80 else "7.8 GB"


def test_the_folder_has_the_files_of_the_page() -> None:
    files = {path.name: path.read_text() for path in FOLDER.glob("*.py")}
    assert files == {name: f"# {name}\n{text}" for name, text in FILES.items()}


def test_the_script_runs_the_commands_of_the_page() -> None:
    script = (FOLDER / "run.sh").read_text()
    commands = re.findall(r"^```console\n\$ (.*)$", TEXT, re.M)
    assert re.findall(r"^(?:shardcheck|pytest) .*$", script, re.M) == commands


@pytest.mark.timeout(3600)
def test_the_script_passes_and_its_mistake_fails(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    for name in ("llama2.py", "test_llama2.py", "run.sh"):
        text = (FOLDER / name).read_text().replace("LAYERS = 80", f"LAYERS = {LAYERS}")
        (tmp_path / name).write_text(text.replace('peak="80 GB"', f'peak="{CEILING}"'))
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, call in {
        "shardcheck": "from pytest_shardcheck.cli import main; raise SystemExit(main())",
        "pytest": "import pytest; raise SystemExit(pytest.main())",
    }.items():  # those of this interpreter
        (commands / name).write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{call}' \"$@\"\n")
        (commands / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTEST_ADDOPTS": "-W ignore -p no:cacheprovider",
    }
    for variable in ("CI", "BUILD_NUMBER"):  # there pytest says a failure twice
        environment.pop(variable, None)
    run = subprocess.run(
        ["sh", tmp_path / "run.sh"], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert CONSOLE[0][1] in run.stdout
    if LAYERS == 80:
        assert CONSOLE[1][1] in run.stdout
    assert "\n1 passed" in run.stdout
    assert run.stdout.count("max_memory(peak): the ceiling of") == 1
    assert "\n1 failed" in run.stdout
    assert MISTAKE in FILES["test_llama2.py"].replace("forward=True", "forward=False")
    seen = [_untold(line.strip()) for line in run.stdout.splitlines()]
    told = [_untold(line.strip()) for line in MESSAGE.splitlines() if "[...]" not in line]
    if LAYERS == 80:
        assert [line for line in told if line not in seen] == []
    # The same sentences, whatever the figures.
    assert {_without_numbers(line) for line in told[:2]} <= {_without_numbers(x) for x in seen}
    unsharded = 2 * (PARAMS - (80 - LAYERS) * LAYER)
    assert f"unsharded parameters {unsharded:,} B" in run.stdout
    assert f"unsharded parameters {2 * PARAMS:,} B" in MESSAGE
    assert f"unsharded parameters {2 * PARAMS / 10**9:.1f}, " in NEVER


def test_the_closed_form_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    command, output = CONSOLE[0]
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output


def test_the_plan_has_the_known_figures() -> None:
    """The peak and the state of 70B at 64 ranks, as torch's own FSDPMemTracker gives them."""
    _, output = CONSOLE[1]
    rows = {
        name: cells for name, *cells in (re.split(r"  +", row.strip()) for row in lines(output))
    }
    at = rows["GPUs"].index("64")
    assert float(rows["total"][at].rstrip("*")) == pytest.approx(16.767 * 1.024**3, abs=0.06)
    assert float(rows["state between steps"][at]) == pytest.approx(8.030 * 1.024**3, abs=0.06)
    assert rows["all_gather calls"][at] == "162"
    assert rows["reduce_scatter calls"][at] == "81"


def lines(output: str) -> list[str]:
    return [line for line in output.splitlines() if "  " in line]


def _untold(line: str) -> str:
    """Leave out where packages lie, as the page does."""
    return re.sub(r" at /\S*/site-packages/", " at .../", line)


def _without_numbers(line: str) -> str:
    return re.sub(r"[0-9][0-9,.]*( [kMGT]i?B)?", "N", line)
