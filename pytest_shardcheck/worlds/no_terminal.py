"""A rank has no terminal: a debugger that waits for input there would wait for ever."""

from __future__ import annotations

import pdb
import sys
from typing import NoReturn

from pytest_shardcheck.vocabulary.errors import UsageError, hide_from_users

__tracebackhide__ = hide_from_users

ADVICE = (
    "a rank is a process without a terminal. Print instead (pytest -s shows each line with its "
    "rank), or look from outside: py-spy dump --pid with the process id of the rank"
)


def refuse_debuggers(rank: int) -> None:
    """Make ``breakpoint()`` and ``pdb.set_trace()`` of this process an error that says so."""

    def refuse(*_: object, **__: object) -> NoReturn:
        __tracebackhide__ = True
        raise UsageError(f"breakpoint() in rank {rank}: {ADVICE}")

    sys.breakpointhook = refuse
    pdb.set_trace = refuse
