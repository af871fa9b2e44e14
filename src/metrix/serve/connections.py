"""Connections that keep their time: headers come, answers are read, and there are no more than the process can hold."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 128  # connections that the system keeps until they are accepted
SPARE = 32  # files that the service may open besides: the index, images, logs

log = logging.getLogger("metrix.serve")


def bound_connections(headers: float, stalled: float, most: int) -> type[H11Protocol]:
    """The protocol of connections under limits.

    Args:
        headers: seconds from the first byte of a request, or from the opening of the connection, to the end of the
            headers.
        stalled: seconds for which a client may not read an answer that is waiting for it.
        most: connections; beyond, the one that has waited longest for a request is closed in favour of a new one.
    """
    idle: dict[BoundConnection, None] = {}  # without a request, in the order in which they became so

    class BoundConnection(H11Protocol):
        """A connection that is closed when it does not keep its time."""

        _unfinished: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            idle[self] = None
            self._unfinished = self.loop.call_later(headers, self._give_up, "unfinished headers")
            if len(self.connections) > most:
                next(iter(idle))._give_up("too many connections")

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                if self._unfinished is None:
                    self._unfinished = self.loop.call_later(headers, self._give_up, "unfinished headers")
            else:
                self._unfinished = _cancel(self._unfinished)
                idle.pop(self, None)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                idle[self] = None

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            if self.transport.is_closing():  # an answer that nobody reads would keep it open
                self._unread = self._unread or self.loop.call_later(stalled, self.transport.abort)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._unread = self._unread or self.loop.call_later(stalled, self._give_up, "unread answer")

        def resume_writing(self) -> None:
            super().resume_writing()
            self._unread = _cancel(self._unread)

        def connection_lost(self, exc: Exception | None) -> None:
            self._unfinished, self._unread = _cancel(self._unfinished), _cancel(self._unread)
            idle.pop(self, None)
            super().connection_lost(exc)

        def _give_up(self, why: str) -> None:
            idle.pop(self, None)
            log.debug("connection closed", extra={"fields": {"why": why, "client": describe_client(self.client)}})
            self.transport.abort()

    return BoundConnection


def _cancel(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer: what is left of one that is cancelled."""
    if timer is not None:
        timer.cancel()
    return None


def describe_client(client: Any) -> str:
    """The address of a client, for the log."""
    return str(client[0]) if client else "unknown"


def count_connections(wanted: int) -> tuple[int, int]:
    """How many connections may be open and how many may wait to be accepted, by the files that the process may open.

    The limit of the process is raised as far as the system lets it.
    """
    try:
        import resource
    except ImportError:  # Windows, where there is no such limit
        return wanted, BACKLOG
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + BACKLOG + SPARE + 256
    if soft != resource.RLIM_INFINITY and soft < needed:
        with contextlib.suppress(OSError, ValueError):
            soft_now = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, soft_now), hard))
            soft = max(soft, soft_now)
    if soft == resource.RLIM_INFINITY:
        return wanted, BACKLOG
    backlog = max(4, min(BACKLOG, soft // 8))  # asyncio accepts so many at once before it can close one
    return max(8, min(wanted, soft - _count_open_files() - backlog - SPARE)), backlog


def _count_open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 64


class AcceptFailures:
    """The handler of errors of the event loop: a lack of files to open is logged once in a while, with its count."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds, self._count, self._next = seconds, 0, 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an error."""
        if "accept" not in str(context.get("message", "")):
            error = context.get("exception")
            log.error(str(context.get("message")), exc_info=error if error is None else (type(error), error, None))
            return
        self._count += 1
        if loop.time() >= self._next:
            self._next = loop.time() + self._seconds
            log.error("no more files can be opened: connections wait", extra={"fields": {"failures": self._count}})
            self._count = 0
