"""Log records on their way from a rank to the session's live log and log file.

pytest's ``--log-cli`` and ``--log-file`` belong to the session's process; a rank's own captured log
is a section of its reports and needs none of this.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable

from pytest_shardcheck.worlds.channel import Channel, Message

_PLAIN = (
    "created",
    "exc_text",
    "filename",
    "funcName",
    "levelname",
    "levelno",
    "lineno",
    "module",
    "msecs",
    "name",
    "pathname",
    "process",
    "processName",
    "relativeCreated",
    "stack_info",
    "thread",
    "threadName",
)


class LiveLog(logging.Handler):
    """Sends each record of a rank to the session as it comes."""

    def __init__(self, channel: Channel) -> None:
        """Send over ``channel``."""
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Send what can be sent: a record's arguments are any objects, its text is not."""
        try:
            text = record.getMessage()
            if record.exc_info and not record.exc_text:
                record.exc_text = logging.Formatter().formatException(record.exc_info)
        except Exception:  # a user's arguments may not fit the message; logging prints why
            self.handleError(record)
            return
        fields = {name: getattr(record, name, None) for name in _PLAIN}
        with contextlib.suppress(OSError):  # the session has gone, and this rank with it
            self._channel.send({"kind": "log", "record": {**fields, "msg": text}})

    def start(self, level: int) -> None:
        """Listen to every logger, and have them pass on what the session's handlers ask for."""
        root = logging.getLogger()
        root.addHandler(self)
        if level:
            root.setLevel(min(root.level, level))


def write(message: Message, rank: int, handlers: Iterable[logging.Handler]) -> None:
    """Hand a rank's record to the session's handlers, marked with its rank."""
    fields = message["record"]
    record = logging.makeLogRecord({**fields, "msg": f"[rank {rank}] {fields['msg']}"})
    for handler in handlers:
        if record.levelno >= handler.level:
            handler.handle(record)
