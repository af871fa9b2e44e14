"""Fixed points at which commands are killed, asked to end, or a write fails; many more with `make chaos`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from faults.jobs import JOBS


def test_fixed_points(tmp_path: Path) -> None:
    names = ",".join([*JOBS, "lite merge", "lite delete"])  # a server is in tests/search
    command = [sys.executable, "-m", "faults", "chaos", "--points", "40", "--seed", "0", "--jobs", names]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "40 points tried" in ended.stdout
    assert " 0 losses" in ended.stdout
    assert list(tmp_path.glob("chaos*")) == []  # the library that lets writes fail was compiled there
