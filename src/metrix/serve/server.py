"""`run_server`: an app on a socket, until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from metrix.errors import InvalidInput
from metrix.serve.limits import Limits

if TYPE_CHECKING:
    import uvicorn

log = logging.getLogger("metrix.serve")


def run_server(app: Any, host: str, port: int, *, limits: Limits, grace: float, started: Callable[[str], None]) -> None:
    """Serve an app until SIGINT or SIGTERM; requests that are being answered get `grace` seconds to end.

    `started` is called with the address once the socket is bound; port 0 takes a free one.
    """
    with contextlib.closing(listen(host, port)) as listening:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listening.getsockname()[1]}"
        started(address)
        _end_on_sigterm()
        try:
            asyncio.run(_serve(app, listening, limits, grace, address))
        except KeyboardInterrupt:
            pass  # an ordinary end
        finally:
            log.info("stopped")


def _end_on_sigterm() -> None:
    """Let SIGTERM end the process in order, after what waits is answered: the log is written to its end."""

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, end)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens.

    Raises:
        InvalidInput: nobody can listen there.
    """
    kind = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only where the protocol is stated; without it an answer waits 40 ms for the client.
    listening = socket.socket(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise InvalidInput(f"{host}:{port}: cannot listen there ({error}); choose another --port") from error
    return listening


async def _serve(app: Any, listening: socket.socket, limits: Limits, grace: float, address: str) -> None:
    from metrix.serve.connections import AcceptFailures

    asyncio.get_running_loop().set_exception_handler(AcceptFailures())
    log.info("listening", extra={"fields": {"address": address}})
    await build_server(app, limits, grace).serve(sockets=[listening])


def build_server(app: Any, limits: Limits, grace: float = 5.0) -> uvicorn.Server:
    """What serves an app on a socket under limits."""
    import uvicorn

    from metrix.serve.connections import bound_connections, count_connections

    most, backlog = count_connections(limits.connections)
    config = uvicorn.Config(
        app,
        http=bound_connections(limits.headers, limits.seconds, most),
        ws="none",
        loop="asyncio",
        backlog=backlog,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=max(1, round(grace)),
    )
    return uvicorn.Server(config)
