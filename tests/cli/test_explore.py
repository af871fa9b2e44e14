"""`metrix explore` as a process, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest


def test_explore_opens_runs_and_stops(run: Path, other_run: Path) -> None:
    command = [sys.executable, "-m", "metrix", "explore", str(run), str(other_run), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "it ended"
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
        said_next = "".join(process.stderr.readline() for _ in range(4))
        assert "next: " in said_next
        assert f"metrix compare {run} {other_run}" in said_next
        assert f"metrix report {run} {other_run}" in said_next
        with urllib.request.urlopen(f"{found[0]}/explore", timeout=30) as answer:
            said = json.loads(answer.read())
        assert said["mode"] == "runs"
        assert [one["name"] for one in said["collections"]] == ["run", "other"]
        assert {("Recall@K", 1), ("MAP@R", None)} <= {
            (measure["metric"], measure["k"]) for measure in said["collections"][0]["measures"]
        }
        with urllib.request.urlopen(found[0], timeout=30) as page:
            assert b"metrix explorer" in page.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_what_cannot_be_explored(refused: Any, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("METRIX_TOKEN", raising=False)
    refused("explore", tmp_path, words="run")
    refused("explore", run, "--host", "0.0.0.0", words="--token or METRIX_TOKEN")
