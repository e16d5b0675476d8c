"""Who asks a simulated world for what it has not, and what to tell them."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

if TYPE_CHECKING:
    from types import FrameType

HOLDS_NOTHING: Final = (
    "the tensors of a simulated world hold nothing: they have shapes, dtypes and bytes. Leave it "
    "out there, as in\n    if not world.simulated:\n        print(loss.item())\n"
    "(fixture `world`), or take a number that the test knows instead. What can't do without "
    "belongs in a real world"
)
_OURS: Final = str(Path(__file__).parents[1])
_TORCH: Final = str(Path(torch.__file__).parent)
_SITE: Final = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_RUNNERS: Final = ("/_pytest/", "/pluggy/")
# These only pass an operator on.
_PASSING_ON: Final = (
    f"{_TORCH}/_subclasses/",
    f"{_TORCH}/_dynamo/",
    f"{_TORCH}/_ops.py",
    f"{_TORCH}/_compile.py",
    f"{_TORCH}/_tensor.py",
    f"{_TORCH}/utils/_stats.py",
)


def asking_line() -> str:
    """Return the line of the test that runs, and which of a library asks, if one does.

    As in "test_train.py:12 (deepspeed/runtime/utils.py:233 asks)".
    """
    library = ""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith((_TORCH, *_SITE)) and not any(part in name for part in _RUNNERS):
            if not library and not name.startswith((_OURS, *_PASSING_ON)):
                library = f" ({_short(name)}:{frame.f_lineno} asks)"
        elif not name.startswith((_OURS, "<")) and not any(part in name for part in _RUNNERS):
            return f"{_relative(name)}:{frame.f_lineno}{library}"
        frame = frame.f_back
    return f"the test{library}"


def _short(name: str) -> str:
    for folder in sorted(_SITE, key=len, reverse=True):
        if name.startswith(folder):
            return name[len(folder) + 1 :]
    return name


def _relative(name: str) -> str:
    try:
        return str(Path(name).relative_to(Path.cwd()))
    except ValueError:
        return name
