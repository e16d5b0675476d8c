"""What the session tells its nursery and its ranks: plain data, with explicit JSON."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_shardcheck.vocabulary.plain import Plain
from pytest_shardcheck.vocabulary.specs import WorldSpec

# A rank writes its stacks on this signal. Nobody's training code uses a real-time signal, and
# faulthandler answers it also while the GIL is held.
DUMP_SIGNAL: Final = signal.SIGRTMIN + 5 if sys.platform == "linux" else signal.SIGUSR2

# Ranks of every world start here, whatever started them; a test may seed itself again.
SEED: Final = 2026


@dataclass(frozen=True, slots=True, kw_only=True)
class Startup(Plain):
    """How a fresh interpreter becomes a copy of the session's pytest.

    ``files`` are the test files to collect, ``option`` is the session's ``config.option``.
    """

    sys_path: tuple[str, ...]
    argv: tuple[str, ...]
    args: tuple[str, ...]
    plugins: tuple[str, ...]
    directory: str
    option: Mapping[str, Any]
    worker_input: Mapping[str, Any] | None
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Plain):
    """One world to bring up for one item.

    ``fingerprint`` is the ``repr`` of the item's parameters in the session: a rank that sees others
    would run another test under this name. ``directory`` is ours, ``tmp_path`` the test's.
    ``log_level`` is that of the session's live log and log file; None where it has neither.
    ``timeline`` asks each rank to write what it did into its ``timeline_path``.
    """

    nodeid: str
    fingerprint: Mapping[str, str]
    spec: WorldSpec
    directory: str
    tmp_path: str
    capture: str
    threads: int
    port: int
    coverage: Mapping[str, Any] | None = None
    log_level: int | None = None
    timeline: bool = False


def stack_path(directory: Path, rank: int) -> Path:
    """Return the file into which a rank writes its Python stacks."""
    return directory / f"rank{rank}.stack"


def ring_path(directory: Path, rank: int) -> Path:
    """Return the file that holds a rank's last collectives."""
    return directory / f"rank{rank}.ring"


def progress_path(directory: Path, rank: int) -> Path:
    """Return the file that says how far the training of a simulated rank is."""
    return directory / f"rank{rank}.progress"


def timeline_path(directory: Path, rank: int) -> Path:
    """Return the file into which a rank writes its timeline."""
    return directory / f"rank{rank}.timeline"
