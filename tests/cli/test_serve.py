"""`metrix serve` as a process: it listens, reloads on SIGHUP and ends on SIGTERM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from metrix.cli.serve import choose_access
from tests.photos import write_photos


@pytest.fixture(scope="module")
def index(metrix: Any, run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    outcome = metrix("index", run, write_photos(folder / "photos"), "-o", folder / "photos.index")
    assert outcome.code == 0, outcome.err
    return folder / "photos.index"


def get(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=20) as answer:
        return json.loads(answer.read())


def test_serve_reload_and_stop(index: Path) -> None:
    from metrix.search import Index

    command = [sys.executable, "-m", "metrix", "serve", str(index), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(4)]
        found = re.search(r"http://127\.0\.0\.1:\d+", lines[1])
        assert found, lines
        address = found[0]
        assert "next: " in lines[2]
        assert f"curl -F image=@QUERY.jpg '{address}/search?k=5'" in "".join(lines[2:])
        assert get(f"{address}/info")["items"] == 18
        assert len(get(f"{address}/search?id=kind%200/0.jpg&k=3")["neighbours"]) == 3
        Index.open(index).delete(["kind 0/1.jpg"])
        if hasattr(signal, "SIGHUP"):
            os.kill(process.pid, signal.SIGHUP)
        deadline = time.monotonic() + 30
        while get(f"{address}/info")["items"] != 17 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert get(f"{address}/info")["generation"] == 2
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_elsewhere_only_with_a_token(refused: Any, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METRIX_TOKEN", raising=False)
    refused("serve", index, "--host", "0.0.0.0", words="--token or METRIX_TOKEN")
    refused("serve", index, "--host", "example.org", "--token", "", words="--token or METRIX_TOKEN")


def test_what_cannot_be_served(refused: Any, index: Path, tmp_path: Path) -> None:
    import socket

    refused("serve", tmp_path, words="expected an index")
    refused("serve", index, "--run", tmp_path, words="run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused("serve", index, "--port", taken.getsockname()[1], words="choose another --port")


def test_a_token_from_a_file_is_taken_without_its_line_break() -> None:
    access = choose_access("0.0.0.0", "secret\n", " pen\r\n")
    assert (access.token, access.write_token) == ("secret", "pen")
    assert choose_access("127.0.0.1", " \n").token is None
