"""How the ranks of a world find each other, without a port that could collide.

``init_process_group()`` reads the ``env://`` handler from torch's table; a rank replaces it by one
that hands out a ``FileStore`` in the world's directory. A TCPStore was rejected as the default: its
server looks up the name of every peer on its one thread, and where DNS drops packets 6 to 10 % of
four-rank worlds stalled for five seconds.

``MASTER_PORT`` is real all the same: it belongs to a socket that the session holds open, on which a
keeper process puts a TCPStore when someone first connects (``tcp://`` and frameworks that dial it).
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qs, urlparse

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

LOCALHOST = "127.0.0.1"


def listen() -> socket.socket:
    """Return the world's listening socket; nobody else can bind the port that the kernel chose."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((LOCALHOST, 0))
    listener.listen(128)
    return listener


def environment(rank: int, size: int, port: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that launchers such as torchrun set, for one rank of a local world."""
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "GROUP_RANK": "0",
        "MASTER_ADDR": LOCALHOST,
        "MASTER_PORT": str(port),
        # tcp:// then connects to the keeper's store instead of binding the port in rank 0.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # DETAIL adds collectives of its own, and a count must not depend on who runs the test.
        "TORCH_DISTRIBUTED_DEBUG": "OFF",
    }
    if "GLOO_SOCKET_IFNAME" not in inherited:
        # Gloo otherwise resolves the host's name, which fails or is slow on many CI machines.
        variables["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return variables


def install(directory: Path, *, simulated: bool = False) -> None:
    """Make ``env://`` of this process rendezvous over files in ``directory``.

    In a simulated world nobody else comes, and the store is this rank's alone.
    """
    # The table is private: register_rendezvous_handler refuses to replace an entry. The attribute
    # of torch.distributed that has the module's name is a function.
    handlers = import_module("torch.distributed.rendezvous")._rendezvous_handlers
    handlers["env"] = _FileRendezvous(directory, simulated)


class _FileRendezvous:
    """The ``env://`` handler of a rank."""

    def __init__(self, directory: Path, simulated: bool) -> None:
        self._directory = directory
        self._simulated = simulated
        self._times = 0

    def __call__(
        self, url: str, timeout: timedelta | None = None, **_: Any
    ) -> Iterator[tuple[Store, int, int]]:
        """Yield the store, the rank and the world size, as torch's own handlers do."""
        from torch._C._distributed_c10d import FileStore, HashStore

        query = parse_qs(urlparse(url).query)
        rank = int(query.get("rank", [os.environ["RANK"]])[0])
        size = int(query.get("world_size", [os.environ["WORLD_SIZE"]])[0])
        # A group that is built again after it was destroyed would read the first one's addresses.
        self._times += 1
        path = str(self._directory / f"rendezvous-{self._times}")
        store = HashStore() if self._simulated else FileStore(path, size)
        if timeout is not None:
            store.set_timeout(timeout)
        yield store, rank, size
        raise RuntimeError("a world of pytest-shardcheck can't be joined again by its old members")


def serve_store(listener: socket.socket, size: int) -> Store:
    """Return a TCPStore that answers on ``listener`` for as long as it is referenced."""
    from torch._C._distributed_c10d import TCPStore

    host, port = listener.getsockname()
    fd = listener.detach()
    return TCPStore(host, port, size, is_master=True, wait_for_workers=False, master_listen_fd=fd)


def keep_store(listener: socket.socket, size: int) -> NoReturn:
    """Serve a TCPStore on ``listener`` until this process is killed with its world."""
    _store = serve_store(listener, size)
    while True:
        time.sleep(3600)
