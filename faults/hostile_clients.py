"""Clients of the service that mean no good, or are very slow; each notes what it was answered."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import re
import socket
import threading
import time
import urllib.parse
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

LARGEST = 1  # MB of an upload
PATIENCE = 10  # seconds that the service gives a request, and the headers of one
GIVEN_UP = (429, 503, 504)  # an overloaded service says so; these answers are counted and printed
QUICK = 3.0  # seconds that no answer to a hostile filter, or about a file that hangs, may take
UNFINISHED = 20  # connections with unfinished headers at a time


@dataclass
class Answers:
    """What clients received."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of sound requests
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, kind: str, status: int, seconds: float | None = None, wrong: str = "") -> None:
        """Count an answer; status 0 is a closed connection."""
        with self.lock:
            self.statuses[f"{kind} {status or 'closed'}"] += 1
            if seconds is not None:
                self.seconds.append(seconds)
            if status >= 500 and status not in GIVEN_UP:
                wrong = wrong or f"{kind}: {status}"
            if wrong:
                self.wrong.append(wrong)


def form(photo: bytes) -> tuple[bytes, dict[str, str]]:
    """The body and the headers of an upload."""
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + photo + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


def read_status(raw: socket.socket) -> tuple[int, bytes]:
    """The status of an answer on a bare connection; 0 if it was closed without one."""
    answer = b""
    with contextlib.suppress(OSError):
        while part := raw.recv(65536):
            answer += part
    found = re.match(rb"HTTP/1\.\d (\d{3})", answer)
    return (int(found[1]) if found else 0), answer


def send_slowly(port: int, answers: Answers) -> None:
    """Upload a byte at a time, until the service has had enough of it."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=60) as raw:
        body, headers = form(b"x" * 100_000)
        lines = [f"POST /search HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        raw.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        deadline = time.monotonic() + 10 * PATIENCE
        raw.settimeout(0.2)
        for byte in body:
            with contextlib.suppress(TimeoutError):
                if first := raw.recv(1):
                    raw.settimeout(60)
                    status = int((first + raw.recv(65536)).split()[1])
                    return answers.note("slow", status, wrong="" if status == 408 else f"slow: {status}")
            raw.sendall(bytes([byte]))
            if time.monotonic() > deadline:
                return answers.note("slow", 0, wrong="slow: it was never given up")
    answers.note("slow", 0)


def send_too_much(port: int, answers: Answers, chunked: bool) -> None:
    """Upload more than is allowed, with its length announced or in chunks."""
    body, headers = form(os.urandom(LARGEST * 2**20 + 100_000))
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    status = 0
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        pieces: Any = (body[start : start + 65536] for start in range(0, len(body), 65536)) if chunked else body
        connection.request("POST", "/search", pieces, headers, encode_chunked=chunked)
        status = connection.getresponse().status
    answers.note("oversized", status, wrong="" if status in (0, 413) else f"oversized: {status}")


def leave_headers_unfinished(port: int, answers: Answers) -> None:
    """Open connections and send the headers a line at a time, or not at all, until the service closes them."""
    opened = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(UNFINISHED)]
    deadline, left = time.monotonic() + 5 * PATIENCE, set(opened)
    for one in opened:
        with contextlib.suppress(OSError):
            one.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            one.settimeout(0.05)
    while left and time.monotonic() < deadline:
        for one in list(left):
            try:
                one.sendall(b"X-More: 1\r\n")
                if not one.recv(100):
                    left.discard(one)
            except TimeoutError:
                continue
            except OSError:
                left.discard(one)
    for one in opened:
        one.close()
    answers.note("unfinished headers", 0, wrong=f"{len(left)} connections were never closed" if left else "")


def ask_for_hanging_file(port: int, answers: Answers, one: str) -> None:
    """Ask for the image of an item whose file is a pipe that nobody writes to."""
    for _ in range(10):
        _ask_quickly(port, answers, "hanging file", f"/image/{urllib.parse.quote(one)}", (404, *GIVEN_UP))


def send_hostile_filters(port: int, answers: Answers, rng: random.Random, one: str) -> None:
    """Search with filters that are expensive to read for a careless reader."""
    pieces = (" ", "(", ")", "label", "=", "!", "<", '"', "'", ",", " and ", " or ", " in ", "(label=a or ", "\\")
    texts = [piece * (1000 // len(piece)) for piece in pieces]
    texts += ["label" + " " * 990 + "=", "label=" + "a " * 490, "".join(rng.choices(pieces, k=300))[:1000]]
    for text in texts:
        query = urllib.parse.urlencode([("id", one), *[("where", text)] * 20])
        _ask_quickly(port, answers, "hostile filter", f"/search?{query}", (200, 400, 422, *GIVEN_UP))


def _ask_quickly(port: int, answers: Answers, kind: str, path: str, expected: tuple[int, ...]) -> None:
    began, status = time.monotonic(), 0
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET", path)
        status = connection.getresponse().status
    seconds = time.monotonic() - began
    wrong = f"{kind}: {status} for {path[:200]}" if status not in expected else ""
    answers.note(kind, status, wrong=wrong or (f"{kind}: it took {seconds:.1f} s" if seconds > QUICK else ""))
