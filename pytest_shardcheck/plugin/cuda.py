"""The ``cuda`` marker: GPU-only tests, decided before any rank starts."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest

from pytest_shardcheck.vocabulary.errors import UsageError
from pytest_shardcheck.vocabulary.units import format_size, parse_size

# On an item: why it must fail under --require-cuda, and what it needs.
REASON: Final = pytest.StashKey[str]()
NEED: Final = pytest.StashKey["Need"]()

_PROBE_TIMEOUT_S: Final = 120
_ACCEPTED: Final = ("devices", "memory", "capability")
# In a process of its own: CUDA that was initialised once can't be used after a fork, and the
# session itself must not import torch.
_PROBE: Final = """
import json, torch
print(json.dumps([
    {"memory": p.total_memory, "capability": [p.major, p.minor], "name": p.name}
    for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
] if torch.cuda.is_available() else []))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a test needs: GPUs, bytes of memory on each, and their compute capability."""

    devices: int = 1
    memory: int = 0
    capability: tuple[int, int] = (0, 0)

    def unmet(self, gpus: Sequence[dict[str, Any]]) -> str:
        """Return why these GPUs are not enough; nothing where they are."""
        if not gpus:
            return f"needs {_gpus(self.devices)}, CUDA is not available here"
        fit = [
            gpu
            for gpu in gpus
            if gpu["memory"] >= self.memory and tuple(gpu["capability"]) >= self.capability
        ]
        if len(fit) >= self.devices:
            return ""
        wanted = _gpus(self.devices)
        if self.memory:
            wanted += f" of {format_size(self.memory)}"
        if self.capability != (0, 0):
            wanted += f" of capability {'.'.join(map(str, self.capability))}"
        seen = ", ".join(
            f"{gpu['name']} ({format_size(gpu['memory'])}, {'.'.join(map(str, gpu['capability']))})"
            for gpu in gpus
        )
        return f"needs {wanted}, here: {seen}"


def need_of(item: pytest.Item, world_size: int) -> Need | None:
    """Return what the ``cuda`` markers of a test ask for together; None without such a marker.

    Raises:
        UsageError: Names the test, the argument, what was given and what is accepted.
    """
    needs = [_parse(mark, item.nodeid, world_size) for mark in item.iter_markers("cuda")]
    if not needs:
        return None
    return Need(
        devices=max(need.devices for need in needs),
        memory=max(need.memory for need in needs),
        capability=max(need.capability for need in needs),
    )


def decide(items: Sequence[pytest.Item], *, require: bool) -> None:
    """Mark the tests whose need is not met as skipped, or note why they must fail."""
    needy = [item for item in items if NEED in item.stash]
    if not needy:
        return
    gpus, problem = _probe()
    for item in needy:
        reason = item.stash[NEED].unmet(gpus)
        if reason and problem:
            reason += f" ({problem})"
        if reason and require:
            item.stash[REASON] = reason
        elif reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def fail_where_required(item: pytest.Item) -> None:
    """Fail a test whose skip ``--require-cuda`` has turned into a failure."""
    if reason := item.stash.get(REASON, None):
        pytest.fail(f"--require-cuda: {reason}", pytrace=False)


def _probe() -> tuple[list[dict[str, Any]], str]:
    """Return the GPUs of this machine, and what went wrong when none could be asked for."""
    command = [sys.executable, "-c", _PROBE]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"asking torch for GPUs took more than {_PROBE_TIMEOUT_S} s"
    try:
        gpus: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        last = (result.stderr.strip().splitlines() or ["no output"])[-1]
        return [], f"asking torch for GPUs failed: {last}"
    return gpus, ""


def _parse(mark: pytest.Mark, where: str, world_size: int) -> Need:
    if mark.args:
        raise _error(where, f"{mark.args!r}", f"named arguments only: {', '.join(_ACCEPTED)}")
    for name in mark.kwargs:
        if name not in _ACCEPTED:
            raise _error(where, f"unknown argument {name!r}", ", ".join(_ACCEPTED))
    devices = mark.kwargs.get("devices", world_size)
    if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
        raise _error(where, f"devices={devices!r}", "a whole number above 0")
    return Need(
        devices=devices,
        memory=_memory(mark.kwargs.get("memory", 0), where),
        capability=_capability(mark.kwargs.get("capability", (0, 0)), where),
    )


def _memory(memory: object, where: str) -> int:
    try:
        return parse_size(memory)
    except UsageError as error:
        raise _error(
            where, f"memory={memory!r}", f'bytes or a size such as "40 GB" ({error})'
        ) from None


def _capability(capability: object, where: str) -> tuple[int, int]:
    match capability:
        case (int(major), int(minor)) if (
            bool not in map(type, (major, minor)) and min(major, minor) >= 0
        ):
            return major, minor
        case str() if match := re.fullmatch(r"(\d+)\.(\d+)", capability):
            return int(match[1]), int(match[2])
    raise _error(where, f"capability={capability!r}", 'such as "9.0" or (9, 0)')


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _error(where: str, given: str, accepted: str) -> UsageError:
    return UsageError(f"{where}: @pytest.mark.cuda: {given} was given; accepted: {accepted}")
