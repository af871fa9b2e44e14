"""Fixed points at which commands are killed, asked to end, or a write fails; many more with `make chaos`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

KNOWN = (8, 12, 26, 37)  # points that lose something still: see docs/guarantees.md


def test_fixed_points() -> None:
    command = [sys.executable, "-m", "faults", "chaos", "--points", "40", "--seed", "0"]
    command += ["--skip", ",".join(map(str, KNOWN))]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "36 points tried" in ended.stdout
    assert " 0 losses" in ended.stdout
