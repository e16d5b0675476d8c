"""What the instruments load: a rank that uses no FSDP must not pay for it, nor a session for us."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_instruments_load_no_fsdp_and_no_plugin() -> None:
    loaded = loaded_by("import pytest_shardcheck.instruments.meter")
    assert "pytest_shardcheck.instruments.live_memory" in loaded
    assert "torch.distributed.fsdp" not in loaded
    assert "torch.distributed.tensor" not in loaded
    assert not any(name.startswith("pytest_shardcheck.plugin") for name in loaded)


def test_expectations_and_closed_forms_load_no_torch() -> None:
    loaded = loaded_by(
        "import pytest_shardcheck.expectations, pytest_shardcheck.expect, pytest_shardcheck.reports"
    )
    assert "torch" not in loaded
