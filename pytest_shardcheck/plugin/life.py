"""A sign of life of a long world: one line below pytest's own, gone when the world is.

It is written with relative movements of the cursor only, so that pytest goes on where it was, also
at the bottom of the screen.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import pytest

from pytest_shardcheck import _compat
from pytest_shardcheck.worlds import clock, watchdog

if TYPE_CHECKING:
    from pytest_shardcheck.worlds.world import World

AFTER_S = 5.0
EVERY_S = 1.0

# A new line, in which our text stands; then up again.
_BELOW: Final = "\n\r"
_CLEAR_REST: Final = "\x1b[K"
_BACK: Final = "\x1b[A\x1b[{column}G"


class LifeSign:
    """The line, of one world after the other."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        """Write to pytest's terminal."""
        self._terminal = terminal
        self._next = 0.0
        self._shown = False

    def look(self, world: World) -> None:
        """Write, at times, what the ranks of a world do that has run for a while."""
        now = clock.now()
        if now < max(self._next, world.started + AFTER_S):
            return
        self._next = now + EVERY_S
        doing = watchdog.what_ranks_do(world.directory, world.states)
        self._shown = True  # before it is: an interrupt may come in between
        self._write(f"{now - world.started:.0f} s: {doing}")

    def erase(self) -> None:
        """Leave the terminal as it was."""
        if self._shown:
            self._write("")
            self._shown = False

    def _write(self, text: str) -> None:
        writer = self._terminal.config.get_terminal_writer()
        width = writer.fullwidth
        column, at_edge = _column(writer.width_of_current_line, width)
        if at_edge:
            return
        # Of names that are not plain ASCII nobody knows how many columns they take.
        plain = text.encode("ascii", "replace").decode()
        line = "".join(letter if letter.isprintable() else "?" for letter in plain)[: width - 1]
        with _compat.uncaptured(self._terminal.config):
            moved = f"{_BELOW}{line}{_CLEAR_REST}{_BACK.format(column=column)}"
            self._terminal.write_raw(moved, flush=True)


def of_session(config: pytest.Config) -> LifeSign | None:
    """Return the line of a session that somebody watches; None where nobody does.

    A terminal that another plugin draws on is left alone, and so is one on which ranks print or
    log as they go: that is a sign of life.
    """
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if type(terminal) is not pytest.TerminalReporter or not terminal.isatty():
        return None
    talks = config.option.capture == "no" or any(
        not isinstance(handler, logging.FileHandler)
        for handler in _compat.live_log_handlers(config)
    )
    quiet = config.option.verbose < -1
    if talks or quiet or os.environ.get("TERM", "dumb") == "dumb":
        return None
    return LifeSign(terminal)


def _column(length: int, width: int) -> tuple[int, bool]:
    """Return where the cursor is after a line of `length`, and whether it waits at the edge.

    There, the terminal breaks the line only when the next letter comes; moving would lose that.
    """
    return length % width + 1, bool(length) and length % width == 0
