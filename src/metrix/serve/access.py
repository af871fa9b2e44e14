"""Who may ask: by default only this machine; with a token, whoever has it. And the size of what they may send."""

from __future__ import annotations

import hmac
import ipaddress
import time
from http.cookies import CookieError, SimpleCookie
from urllib.parse import unquote

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from metrix.serve.limits import Limits
from metrix.serve.metrics import Metrics

COOKIE = "metrix_token"
# Probes say nothing but whether the service is up; the page has no data of its own.
OPEN_TO_ALL = ("/livez", "/readyz", "/", "/favicon.ico")
OPEN_FOLDER = "/static/"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine only.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Gate:
    """ASGI middleware in front of all routes: access, the size of bodies, and the count of requests.

    Args:
        app: what is behind it.
        token: that a request has to carry; None lets in requests that name this machine as their host, so that a
            page elsewhere cannot reach the service through a name of its own (DNS rebinding).
        limits: `upload` bounds the body.
        metrics: counts the answers.
    """

    def __init__(self, app: ASGIApp, token: str | None, limits: Limits, metrics: Metrics) -> None:
        self._app, self._token, self._limits, self._metrics = app, token, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            refusal = self._refuse(scope)
            if refusal is not None:
                await refusal(scope, receive, counted)
            else:
                await self._app(scope, self._bounded(scope, receive), counted)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self._metrics.requests.labels(scope["method"], route, status).inc()
            self._metrics.seconds.labels(route).observe(time.perf_counter() - start)

    def _refuse(self, scope: Scope) -> JSONResponse | None:
        path, headers = scope["path"], Headers(scope=scope)
        if self._token is None:
            host = headers.get("host", "")
            name = host[: host.rindex("]") + 1] if host.startswith("[") and "]" in host else host.split(":")[0]
            if not is_loopback(name):
                return _error(403, f"host: expected this machine, got {host!r}; start with a token to serve others")
        elif path not in OPEN_TO_ALL and not path.startswith(OPEN_FOLDER) and not self._has_token(headers):
            return _error(401, "expected the token of this service: Authorization: Bearer TOKEN", _CHALLENGE)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._limits.upload:
            return _error(413, _too_large(self._limits))
        return None

    def _has_token(self, headers: Headers) -> bool:
        assert self._token is not None
        given = ""
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            given = value.strip()
        elif "cookie" in headers:  # of the page, whose images cannot carry a header
            try:
                cookie = SimpleCookie(headers["cookie"]).get(COOKIE)
            except CookieError:
                cookie = None
            given = "" if cookie is None else unquote(cookie.value)
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        received = 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limits.upload:  # a body without a stated length
                raise HTTPException(413, _too_large(self._limits))
            return message

        return bounded


_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def _too_large(limits: Limits) -> str:
    return f"body: expected at most {limits.upload:,} bytes, got more; shrink the image"


def _error(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)
