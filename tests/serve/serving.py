"""A service on a free port of this machine, in a thread of this process."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from metrix.serve.limits import Limits
from metrix.serve.server import build_server, listen


@contextlib.contextmanager
def serve(app: Any, limits: Limits | None = None) -> Iterator[str]:
    """The address of an app that a thread of this process serves, as `metrix serve` does."""
    listening = listen("127.0.0.1", 0)
    server = build_server(app, limits or Limits(), grace=1)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(20)
    listening.close()


def connect(address: str, sent: bytes = b"") -> socket.socket:
    """A connection on which some bytes were sent."""
    host, port = address.removeprefix("http://").split(":")
    opened = socket.create_connection((host, int(port)), timeout=10)
    if sent:
        opened.sendall(sent)
    return opened


def is_closed(opened: socket.socket, seconds: float = 5.0) -> bool:
    """Whether the other side closes a connection within some time; it is closed here then."""
    opened.settimeout(seconds)
    with opened:
        try:
            while opened.recv(65536):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False
