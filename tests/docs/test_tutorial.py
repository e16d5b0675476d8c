"""docs/tutorial.md: its files run, at two layers, and its figures are those of the whole model.

`SHARDCHECK_LLAMA=80` runs them with all layers, which is minutes: then the page's message is what
is printed, to the byte. Else tests/regression/test_simulated_llama.py has the whole model.
"""

from __future__ import annotations

import os
import re
import shlex
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
PARAMS, LAYER = 68_976_648_192, 855_654_400
# Of a step at two layers, with and without resharding, 7.4 and 8.2 GB.
CEILING = "80 GB" if LAYERS == 80 else "7.8 GB"


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


def test_it_passes_and_with_the_mistake_fails(run_session) -> None:
    pytest.importorskip("transformers")
    model = FILES["llama2.py"].replace("LAYERS = 80", f"LAYERS = {LAYERS}")
    right = FILES["test_llama2.py"].replace('"80 GB"', f'"{CEILING}"')
    (line,) = re.findall(r"^ +fully_shard\(.*\n", right, re.M)
    wrong = right.replace(line, MISTAKE)
    assert wrong != right
    # Each in a folder of its own, as it is the same file.
    files = {"llama2.py": model, "right/test_llama2.py": right, "wrong/test_llama2.py": wrong}
    session = run_session(
        files, "-q", "-W", "ignore", "--import-mode=importlib", "-o", "pythonpath=."
    )
    assert session.outcomes == {"failed": 1, "passed": 1}, session.out
    failure = session.failure("test_fits_64_gpus[world64-simulated]")
    seen = [line.strip() for line in failure.splitlines()]
    told = [line.strip() for line in MESSAGE.splitlines()]
    if LAYERS == 80:
        assert told[0] in seen
        assert told[1] in seen
    # The same sentences, whatever the figures.
    assert {_without_numbers(line) for line in told[:2]} <= {_without_numbers(x) for x in seen}
    unsharded = 2 * (PARAMS - (80 - LAYERS) * LAYER)
    assert f"unsharded parameters {unsharded:,} B" in failure
    assert f"unsharded parameters {2 * PARAMS:,} B" in MESSAGE
    assert f"unsharded parameters {2 * PARAMS / 10**9:.1f}, " in NEVER


def _without_numbers(line: str) -> str:
    return re.sub(r"[0-9][0-9,.]*( [kMGT]i?B)?", "N", line)
