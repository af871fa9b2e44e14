"""Connections of slow, silent and too many clients, on real sockets."""

from __future__ import annotations

import contextlib
import http.client
import re
import resource
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metrix.serve.api import build_service
from metrix.serve.limits import Limits
from tests.serve.serving import connect, is_closed, serve

UNFINISHED = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-More: "
REQUEST = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def address(indexed: Path) -> Iterator[str]:
    limits = Limits(headers=0.4, seconds=1.0)
    with serve(build_service(indexed / "photos.index", limits=limits), limits) as opened:
        yield opened


def test_answers_on_a_kept_connection_do_not_wait(address: str) -> None:
    host, port = address.removeprefix("http://").split(":")
    times = []
    with contextlib.closing(http.client.HTTPConnection(host, int(port), timeout=10)) as connection:
        for _ in range(40):
            start = time.perf_counter()
            connection.request("GET", "/livez")
            connection.getresponse().read()
            times.append(time.perf_counter() - start)
    assert statistics.median(times) < 0.02  # 0.044 where the answer waits for the client's acknowledgement


@pytest.mark.parametrize("sent", [b"", b"G", UNFINISHED], ids=["nothing", "a byte", "unfinished"])
def test_headers_that_do_not_come_end_the_connection(address: str, sent: bytes) -> None:
    opened = [connect(address, sent) for _ in range(10)]
    assert all(is_closed(one) for one in opened)


def test_a_second_request_has_to_come_in_time_too(address: str) -> None:
    opened = connect(address, b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    got = b""
    while b"alive" not in got:
        got += opened.recv(65536)
    opened.sendall(UNFINISHED)
    assert is_closed(opened, 3)


def keep_sending(opened: socket.socket, data: bytes, seconds: float) -> None:
    """Send something over and over, until the connection is closed."""
    deadline = time.monotonic() + seconds
    opened.settimeout(0.5)
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            opened.sendall(data)
        time.sleep(0.05)


def test_headers_that_trickle_end_the_connection(address: str) -> None:
    with connect(address, UNFINISHED) as opened, pytest.raises(ConnectionError):
        keep_sending(opened, b"x", 5)


def test_answers_that_are_not_read_end_the_connection(address: str) -> None:
    with connect(address) as opened, pytest.raises(ConnectionError):
        keep_sending(opened, REQUEST * 50, 20)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts open files in /proc")
def test_a_limit_on_open_files_neither_stops_the_service_nor_fills_the_log(indexed: Path) -> None:
    command = [sys.executable, "-m", "metrix", "serve", str(indexed / "photos.index"), "--port", "0"]

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=few_files)
    said: list[str] = []
    try:
        assert process.stderr is not None
        while (found := re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())) is None:
            assert process.poll() is None
        reading = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
        reading.start()
        opened = [connect(found[0], UNFINISHED) for _ in range(140)]
        for _ in range(3):
            assert httpx.get(f"{found[0]}/livez", timeout=5).status_code == 200
            assert httpx.get(f"{found[0]}/search", params={"id": "kind 0/0.jpg"}, timeout=5).status_code == 200
        process.terminate()
        assert process.wait(30) == 143
        reading.join(10)
        for one in opened:
            one.close()
    finally:
        process.kill()
        process.communicate()
    assert len("".join(said)) < 20_000
    assert "stopped" in said[-1]
