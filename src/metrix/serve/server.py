"""`run_server`: an app on a socket, until it is interrupted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from metrix.errors import InvalidInput


def run_server(app: Any, host: str, port: int, *, grace: float, started: Callable[[str], None]) -> None:
    """Serve an app until SIGINT or SIGTERM; requests that are being answered get `grace` seconds to end.

    `started` is called with the address once the socket is bound; port 0 takes a free one.
    """
    import socket

    import uvicorn

    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(kind, socket.SOCK_STREAM)
    with contextlib.closing(listening):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
            listening.listen(2048)
        except (OSError, OverflowError) as error:
            raise InvalidInput(f"{host}:{port}: cannot listen there ({error}); choose another --port") from error
        name = f"[{host}]" if ":" in host else host
        started(f"http://{name}:{listening.getsockname()[1]}")
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=max(1, round(grace)))
        with contextlib.suppress(KeyboardInterrupt):  # an ordinary end
            uvicorn.Server(config).run(sockets=[listening])
