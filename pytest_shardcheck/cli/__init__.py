"""The command `shardcheck`: what is done with recordings, and with plans, outside of a session.

Each command is a module with `NAME`, `HELP`, `add_arguments(parser)` and `run(arguments) -> int`.
Importing them imports no torch.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from pytest_shardcheck.vocabulary.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMMANDS: Final[tuple[str, ...]] = ("compare", "plan")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 2 where it was called wrongly."""
    parser = argparse.ArgumentParser(prog="shardcheck", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(metavar="command", required=True)
    for name in _COMMANDS:
        module = import_module(f"{__name__}.{name}")
        command = commands.add_parser(module.NAME, help=module.HELP, description=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except UsageError as error:
        sys.stderr.write(f"shardcheck: {error}\n")
        return 2
