"""A terminal that is as simple as what pytest and we write to it."""

from __future__ import annotations

import re

_PART = re.compile(r"\x1b\[([0-9;]*)([A-Za-z])|([\x00-\x1f])|([^\x00-\x1f])")


class Screen:
    """Rows of letters, of which the last `height` can be written on."""

    def __init__(self, width: int, height: int) -> None:
        self.rows = [""]
        self.width, self._height = width, height
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for argument, command, control, letter in _PART.findall(text):
            if command:
                self._command(command, int(argument) if argument.isdecimal() else 1)
            elif control == "\n":
                self._down()
            elif control == "\r":
                self.column = 0
            elif letter:
                if self.column == self.width:  # only now the line is broken
                    self.column = 0
                    self._down()
                line = self.rows[self.row].ljust(self.column)
                self.rows[self.row] = line[: self.column] + letter + line[self.column + 1 :]
                self.column += 1

    def _command(self, command: str, number: int) -> None:
        if command == "A":
            self.row = max(self.row - number, len(self.rows) - self._height, 0)
        elif command == "G":
            self.column = min(number, self.width) - 1
        elif command == "K":
            self.rows[self.row] = self.rows[self.row][: self.column]
        else:
            assert command == "m", f"no terminal that we know does {command!r}"

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    @property
    def text(self) -> str:
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n")
