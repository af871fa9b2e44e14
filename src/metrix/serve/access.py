"""Who may ask: by default only this machine; with a token, whoever has it; and changes only with a token for them."""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.datastructures import Headers

COOKIE = "metrix_token"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
# Probes say nothing but whether the service is up; pages have no data of their own.
OPEN_TO_ALL = ("/livez", "/readyz", "/", "/label", "/favicon.ico")
OPEN_FOLDER = "/static/"
METRICS = "/metrics"


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


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    detail: str


@dataclass(frozen=True)
class Access:
    """Who may ask for what.

    Args:
        token: that a request has to carry; None lets in requests that name this machine as their host, so that a page
            elsewhere cannot reach the service through a name of its own (DNS rebinding).
        write_token: that a request has to carry to change the index, and with which everything else may be asked for,
            too; None allows no changes.
        open_metrics: whether `/metrics` is answered without a token.
        open_changes: whether this machine may change things without a token, where there is none: `metrix label`.
    """

    token: str | None = None
    write_token: str | None = None
    open_metrics: bool = False
    open_changes: bool = False

    def refuse(self, method: str, path: str, headers: Headers, changes: bool) -> Refusal | None:
        """Why a request may not be answered; None if it may. `changes` is whether it would change the index."""
        by_header, by_cookie = _bearer(headers), _cookie(headers)
        given = by_header if by_header is not None else by_cookie
        writer = _same(given, self.write_token)
        if self.token is None and not writer:
            host = headers.get("host", "")
            if not is_loopback(_name(host)):
                return Refusal(
                    403, f"host: expected this machine, got {host[:200]!r}; start with a token to serve others"
                )
        elif not writer and not self._is_open(path) and not _same(given, self.token):
            return Refusal(401, "expected the token of this service: Authorization: Bearer TOKEN")
        changes = changes and not (self.open_changes and self.token is None)
        if changes and self.write_token is None:
            return Refusal(403, "this service changes nothing; start it with --write-token to allow it")
        if changes and not writer:
            return Refusal(401, "expected the token for changes: Authorization: Bearer TOKEN")
        # A page elsewhere can make a browser send a form and its cookies, but not a header with the token.
        if method not in SAFE_METHODS and by_header is None and _is_foreign(headers):
            return Refusal(403, "origin: expected a page of this service, got one from elsewhere")
        return None

    def _is_open(self, path: str) -> bool:
        return path in OPEN_TO_ALL or path.startswith(OPEN_FOLDER) or (self.open_metrics and path == METRICS)


def _same(given: bytes | None, token: str | None) -> bool:
    return given is not None and token is not None and hmac.compare_digest(given, token.encode("utf-8", "replace"))


def _bearer(headers: Headers) -> bytes | None:
    """The bytes of the token in the header; a name that is not ASCII arrives as its UTF-8."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    return value.strip().encode("latin-1", "replace") if kind.lower() == "bearer" else None


def _cookie(headers: Headers) -> bytes | None:
    """The bytes of the token that the page keeps, whose images cannot carry a header."""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return None if cookie is None else unquote_to_bytes(cookie.value)


def _name(host: str) -> str:
    """The name in a Host header, without the port."""
    return host[: host.rindex("]") + 1] if host.startswith("[") and "]" in host else host.split(":")[0]


def _is_foreign(headers: Headers) -> bool:
    """Whether a browser sends this for a page of another origin."""
    origin = headers.get("origin")
    if origin is None:
        return headers.get("sec-fetch-site", "none") not in ("same-origin", "none")
    try:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:
        return True
