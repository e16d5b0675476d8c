"""The tables of docs/systems, made by training every system.

``python tests/docs/system_tables.py`` writes them; test_every_system.py compares each row.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

REGRESSION = Path(__file__).parents[1] / "regression"
sys.path.insert(0, str(REGRESSION))

from systems import SYSTEMS  # noqa: E402
from systems.tables import EQUAL_HEAD, EQUALITY, PAGES, filled  # noqa: E402

TRAINED = [REGRESSION / name for name in ("test_every_system.py", "test_simulated_systems.py")]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *map(str, TRAINED), "-k", "test_at"],
            env={**os.environ, "SHARDCHECK_TABLES": folder},
            check=True,
        )
        write(Path(folder))


def write(folder: Path) -> None:
    """Fill the pages with the rows that the tests left in a folder, a file each."""
    for page in ("README", *dict.fromkeys(system.page for system in SYSTEMS)):
        rows = [
            (folder / f"{system.id}-{size}").read_text()
            for system in SYSTEMS
            if page in ("README", system.page)
            for size in system.sizes
        ]
        path = PAGES / f"{page}.md"
        path.write_text(filled(path.read_text(), rows))
    write_equality(folder)


def write_equality(folder: Path) -> None:
    """Put what real and simulated worlds measured side by side."""
    rows = []
    for system in SYSTEMS:
        for size in () if system.unsimulated else system.sizes:
            real, simulated = (
                (folder / f"{system.id}-{size}-{kind}").read_text().splitlines()
                for kind in ("real", "simulated")
            )
            assert real[:6] == simulated[:6], f"{system.name} at {size}: {real} and {simulated}"
            rows.append(f"| {' | '.join([*real, *simulated[6:], system.other_peak])} |")
    EQUALITY.write_text(filled(EQUALITY.read_text(), rows, EQUAL_HEAD))


if __name__ == "__main__":
    main()
