from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def reader_folder(tmp_path_factory: pytest.TempPathFactory, run: Path, other_run: Path) -> Path:
    """A folder with what examples and commands of the documentation speak of: photos/, and runs that are finished."""
    folder = tmp_path_factory.mktemp("reader")
    rng = np.random.default_rng(0)
    for k in range(8):
        (folder / "photos" / f"class{k}").mkdir(parents=True)
        for n in range(4):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / f"class{k}" / f"{n}.png")
    for name, trained in (("a", run), ("b", other_run), ("2026-…", run)):
        shutil.copytree(trained, folder / "runs" / name)
    return folder
