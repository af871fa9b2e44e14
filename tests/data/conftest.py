from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

Paint = Callable[..., Path]


def damage(path: Path) -> None:
    """Cut an image file short."""
    path.write_bytes(path.read_bytes()[:40])


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test alone."""
    folder = tmp_path / "own cache"
    monkeypatch.setenv("METRIX_CACHE", str(folder))
    return folder


@pytest.fixture
def paint() -> Paint:
    """Write a picture of one colour, whatever folders it needs."""

    def write(path: Path, colour: object = (200, 30, 30), size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new(mode, size, colour).save(path)  # type: ignore[arg-type]
        return path

    return write


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six class folders of three noisy pictures each; red is 40 times the class's number."""
    root = tmp_path / "photos"
    rng = np.random.default_rng(0)
    for k in range(6):
        (root / f"class{k}").mkdir(parents=True)
        for n in range(3):
            pixels = rng.integers(0, 256, (16 + k, 20 + n, 3), dtype=np.uint8)
            pixels[:, :, 0] = 40 * k
            Image.fromarray(pixels).save(root / f"class{k}" / f"{n}.png")
    return root
