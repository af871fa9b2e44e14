"""What every request passes: access, limits on size and time, a name, a line in the log, and the count of answers."""

from __future__ import annotations

import logging
import re
import secrets
import time
from contextvars import ContextVar
from typing import Any

import anyio
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metrix.serve.access import METRICS, SAFE_METHODS, Access
from metrix.serve.connections import describe_client
from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
PROBES = ("/livez", "/readyz", METRICS)
DISCONNECTED = 499  # the client left before its answer; nobody receives this status
# No other page may show ours, or images and answers of ours, nor guess what kind of file they are.
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)

log = logging.getLogger("metrix.serve")
request_name: ContextVar[str] = ContextVar("request_name", default="")


class Gate:
    """ASGI middleware in front of all routes.

    Args:
        app: what is behind it.
        access: who may ask.
        limits: on the size of a body, and on the time from the arrival of a request to the end of its answer.
        metrics: counts the answers.
    """

    def __init__(self, app: ASGIApp, access: Access, limits: Limits, metrics: Metrics) -> None:
        self._app, self._access, self._limits, self._metrics = app, access, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._limits)
        request_name.set(exchange.name)
        error: BaseException | None = None
        try:
            refusal = self._refuse(scope, exchange.headers)
            if refusal is not None:
                await refusal(scope, exchange.receive, exchange.send)
            else:
                await self._answer(scope, exchange)
        except ClientDisconnect:
            exchange.status = exchange.status or DISCONNECTED
        except Exception as failure:
            error = failure
            if not exchange.status:
                answer = {"detail": f"the service failed; its log says why, under request {exchange.name}"}
                await JSONResponse(answer, 500)(scope, exchange.receive, exchange.send)
            exchange.status = 500
        finally:
            self._count(scope, exchange, error)

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        seconds = self._limits.changing if _changes(scope) or scope["path"] == "/reload" else self._limits.seconds
        with anyio.move_on_after(seconds) as time_limit:
            await self._app(scope, exchange.receive, exchange.send)
        if time_limit.cancelled_caught:
            exchange.late = True
            if not exchange.status:
                late = f"no answer after {seconds:g} s; try again later"
                slow = f"body: expected within {seconds:g} s"
                answer = (
                    JSONResponse({"detail": late}, 504) if exchange.complete else JSONResponse({"detail": slow}, 408)
                )
                await answer(scope, exchange.receive, exchange.send)

    def _refuse(self, scope: Scope, headers: Headers) -> JSONResponse | None:
        refusal = self._access.refuse(scope["method"], scope["path"], headers, _changes(scope))
        if refusal is not None:
            challenge = {"WWW-Authenticate": "Bearer"} if refusal.status == 401 else None
            return JSONResponse({"detail": refusal.detail}, refusal.status, challenge)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._limits.upload:
            return JSONResponse({"detail": _too_large(self._limits)}, 413)
        return None

    def _count(self, scope: Scope, exchange: _Exchange, error: BaseException | None) -> None:
        seconds = time.perf_counter() - exchange.start
        status = exchange.status or DISCONNECTED
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._metrics.requests.labels(method, route, status).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        level = _level(scope["path"], status)
        if not log.isEnabledFor(level):
            return
        query = scope.get("query_string", b"").decode("latin-1")
        fields: dict[str, Any] = {
            "method": scope["method"][:20],
            "path": (scope["path"] + (f"?{query}" if query else ""))[:300],
            "status": status,
            "ms": round(1000 * seconds, 1),
            "client": describe_client(scope.get("client")),
            "request": exchange.name,
        }
        said = (
            "failed"
            if error is not None
            else "given up"
            if exchange.late
            else "refused"
            if status >= 400
            else "answered"
        )
        log.log(level, said, extra={"fields": fields}, exc_info=error)


class _Exchange:
    """A request and what was answered so far."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self.headers = Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        self.name = given if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given) else secrets.token_hex(8)
        self.start = time.perf_counter()
        self.status = 0  # until the answer began
        bodyless = self.headers.get("content-length", "0") == "0" and "transfer-encoding" not in self.headers
        self.complete = bodyless  # whether the body has arrived
        self.late = False
        self._receive, self._send, self._limits, self._received = receive, send, limits, 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        self._received += len(message.get("body", b""))
        self.complete = not message.get("more_body", False)
        if self._received > self._limits.upload:  # a body without a stated length
            raise HTTPException(413, _too_large(self._limits))
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            more = [*HEADERS, (b"x-request-id", self.name.encode())]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)


def _changes(scope: Scope) -> bool:
    """Whether a request would change the index, or decide on a label of it."""
    path = scope["path"]
    return scope["method"] not in SAFE_METHODS and (path == "/items" or path.startswith(("/items/", "/labelling/")))


def _level(path: str, status: int) -> int:
    if status >= 500 and status not in (503, 504):
        return logging.ERROR
    if status in (401, 403, 503, 504):
        return logging.WARNING
    return logging.DEBUG if path in PROBES or path.startswith("/static/") else logging.INFO


def _too_large(limits: Limits) -> str:
    return f"body: expected at most {limits.upload:,} bytes, got more; shrink the image"
