"""Mapped vectors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from metrix.search import vectors
from metrix.search.vectors import MappedVectors


def resident(path: Path) -> int:
    """Bytes of a mapped file that count as memory of this process."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        key = line.split()[0]
        if not key.endswith(":"):
            inside = line.endswith(str(path))
        elif inside and key == "Rss:":
            found += 1024 * int(line.split()[1])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what is resident")
def test_a_process_keeps_no_pages_of_a_large_file_of_which_it_reads_single_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40_000, 64), dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = MappedVectors.open([tmp_path / "x.npy"])
    rows = rng.integers(len(x), size=500)
    assert np.array_equal(mapped[rows], x[rows])
    assert resident(tmp_path / "x.npy") > x.nbytes // 4
    monkeypatch.setattr(vectors, "GIVEN_BACK_FROM", x.nbytes)
    assert np.array_equal(mapped[rows], x[rows])
    assert resident(tmp_path / "x.npy") == 0
    assert np.array_equal(mapped[:], x)
