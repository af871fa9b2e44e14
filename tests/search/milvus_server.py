"""A Milvus server for the tests: the package `milvus` of PyPI is a whole one, for Linux on x86-64."""

from __future__ import annotations

import importlib.util
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START = 90.0  # seconds
READY = b"Ctrl+C to exit"
NOT_TESTED = "a Milvus SERVER IS NOT TESTED: "
PORTS = ("etcd", "root-coord", "proxy", "proxy-internal", "query-coord", "query-node", "index-coord", "index-node")
PORTS += ("data-coord", "data-node")
# A server that is asked for little may answer at once: by default it looks every second whether something is to be done.
QUICK = {
    "PROXY_TIMETICKINTERVAL": "20",
    "QUERYCOORD_CHECKCHANNELINTERVAL": "50",
    "QUERYCOORD_CHECKSEGMENTINTERVAL": "50",
    "QUERYCOORD_DISTPULLINTERVAL": "50",
    "DATACOORD_SEGMENT_ASSIGNMENTEXPIRATION": "200",
}


class NoServer(Exception):  # noqa: N818
    """Why there is none."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@contextmanager
def run_server(data: Path) -> Iterator[str]:
    """The URI of a server that ends with the block; `METRIX_TEST_MILVUS` names one that runs already."""
    running = os.environ.get("METRIX_TEST_MILVUS")
    if running:
        yield running
        return
    if importlib.util.find_spec("milvus") is None:
        raise NoServer(f"{NOT_TESTED}pip install milvus==2.3.5, which there is for Linux on x86-64")
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    flags = [text for name, port in ports.items() for text in (f"--{name}-port", str(port))]
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "from milvus import main; main()", "--data", str(data), *flags],
        env={**os.environ, **QUICK},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait(process)
        yield f"http://127.0.0.1:{ports['proxy']}"
    finally:
        _end(process)
        assert process.stdout is not None
        process.stdout.close()


def _wait(process: subprocess.Popen[bytes]) -> None:
    """Wait for what the server prints when it is ready; a client here would hinder processes from being forked."""
    assert process.stdout is not None
    said, deadline = b"", time.monotonic() + START
    while READY not in said:
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(process.stdout.fileno(), 4096) if ready else b""
        if not piece:
            raise NoServer(f"{NOT_TESTED}it was not ready after {START:g} s, or ended ({said.decode().strip()[-200:]})")
        said += piece


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server, which is the leader of a session of its own, and what it started."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            return
        try:
            process.wait(20)
            if sign == signal.SIGTERM:
                time.sleep(1)
        except subprocess.TimeoutExpired:
            continue
