"""Length-prefixed JSON messages, and file descriptors, over a Unix socket pair.

Both sides of every conversation (session and nursery, session and rank) use this one module, so
that it may import nothing but the standard library.
"""

from __future__ import annotations

import array
import json
import math
import os
import select
import socket
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any, Final

from pytest_shardcheck.vocabulary.errors import HarnessError

Message = dict[str, Any]

_HEADER: Final = struct.Struct("<I")
# Larger than any report (a long traceback is 100 kB); garbage in a header is far larger.
_LARGEST_MESSAGE: Final = 1 << 28
_FD_SPACE: Final = socket.CMSG_LEN(8 * array.array("i").itemsize)


class Channel:
    """One end of a conversation.

    ``receive`` blocks and is for the child; ``receive_ready`` never blocks and is for the parent's
    event loop.
    """

    def __init__(self, sock: socket.socket) -> None:
        """Take over the connected stream socket ``sock``."""
        self._socket = sock
        self._buffer = bytearray()
        self._fds: list[int] = []
        # A user's thread may warn or log while the main thread sends a report.
        self._lock = threading.Lock()
        self.closed = False

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Return the channel whose socket was inherited as ``fd``."""
        return cls(socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the socket's file descriptor, for a selector."""
        return self._socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = (), *, encodable: bool = False) -> None:
        """Send one message and, beside it, open file descriptors.

        Args:
            message: Plain data; what is not is sent as its ``repr``.
            fds: The descriptors.
            encodable: Send "?" for lone surrogates: what is only read by people must not keep
                xdist from sending it on (execnet can't), while a path must stay as it is.

        Raises:
            OSError: The other side is gone.
        """
        # The kernel may deliver a message without descriptors together with the next one's.
        counted = {**message, "fds": len(fds)} if fds else message
        text = json.dumps(counted, default=repr, ensure_ascii=not encodable)
        payload = text.encode(errors="replace")
        frame = _HEADER.pack(len(payload)) + payload
        with self._lock:
            if fds:
                sent = socket.send_fds(self._socket, [frame[: _HEADER.size]], list(fds))
                frame = frame[sent:]
            self._socket.sendall(frame)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Wait for one message; return it and its descriptors, None once the other side left."""
        while True:
            message = self._pop()
            if message is not None:
                count = message.pop("fds", 0)
                fds, self._fds = self._fds[:count], self._fds[count:]
                return message, fds
            if not self._read(0):
                return None

    def receive_ready(self) -> list[Message]:
        """Return the messages that have arrived; set ``closed`` when the other side left."""
        while self._read(socket.MSG_DONTWAIT):
            pass
        messages = []
        while (message := self._pop()) is not None:
            messages.append(message)
        return messages

    def take_fds(self) -> list[int]:
        """Return the descriptors that arrived with the messages so far; the caller owns them."""
        fds, self._fds = self._fds, []
        return fds

    def close(self) -> None:
        """Close this end; further reads see the end of the conversation."""
        self.closed = True
        self._socket.close()
        for fd in self.take_fds():
            os.close(fd)

    def _read(self, flags: int) -> bool:
        if self.closed:
            return False
        try:
            # Not socket.recv_fds: until Python 3.13 it ignores its flags and blocks.
            data, ancillary, _, _ = self._socket.recvmsg(1 << 16, _FD_SPACE, flags)
        except BlockingIOError:
            return False
        except ConnectionError:
            self.closed = True
            return False
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds = array.array("i")
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
                self._fds.extend(fds)
        if not data:
            self.closed = True
            return False
        self._buffer += data
        return True

    def _pop(self) -> Message | None:
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > _LARGEST_MESSAGE:
            raise HarnessError(
                f"a message of {length:,} bytes was announced, at most {_LARGEST_MESSAGE:,} are "
                "possible: something else wrote into shardcheck's socket"
            )
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        payload = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        try:
            message = json.loads(payload)
        except ValueError:
            message = None
        if not isinstance(message, dict) or "kind" not in message:
            raise HarnessError(
                f"a message was expected, {payload[:80]!r} was seen: something else wrote into "
                "shardcheck's socket"
            )
        return message


def pair() -> tuple[Channel, socket.socket]:
    """Return a channel for this process and the socket to hand to another one."""
    ours, theirs = socket.socketpair()
    return Channel(ours), theirs


def wait_readable(sources: Iterable[int | Channel], timeout_s: float) -> None:
    """Wait until one of the descriptors or channels has something to read.

    Not ``select``: it can't watch descriptors from 1,024 on.
    """
    poller = select.poll()
    for source in sources:
        poller.register(source, select.POLLIN)
    poller.poll(math.ceil(timeout_s * 1000))
