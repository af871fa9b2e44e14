"""Sound files to damage: photos, tables, a trained run, a run to resume, an index, all small and always the same."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SETTINGS: dict[str, Any] = {
    "data": "glyphs-mini",
    "backbone": "glyphs-cnn",
    "dim": 8,
    "batch_size": 12,
    "per_class": 3,
    "train_classes": 8,
    "epochs": 2,
    "checkpoint_steps": 2,
    "lr": 1e-3,
    "mixup": ["embed"],
    "max_steps": 4,
}
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")


@dataclass(frozen=True)
class Material:
    """Where the sound files are."""

    folder: Path

    @property
    def photos(self) -> Path:
        """Class folders of JPEG files."""
        return self.folder / "photos"

    @property
    def run(self) -> Path:
        """A finished run."""
        return self.folder / "run"

    @property
    def index(self) -> Path:
        """An index of the photos."""
        return self.folder / "photos.index"


def draw_photo(number: int, side: int = 24) -> Image.Image:
    """A picture of noise."""
    return Image.fromarray(np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8))


def encode(image: Image.Image, kind: str) -> bytes:
    """An image as the bytes of a file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def write_photos(folder: Path, classes: int = 4, per_class: int = 3) -> Path:
    """Class folders `kind-0`, `kind-1`, ... of JPEG files."""
    for c in range(classes):
        (folder / f"kind-{c}").mkdir(parents=True, exist_ok=True)
        for n in range(per_class):
            (folder / f"kind-{c}" / f"{n}.jpg").write_bytes(encode(draw_photo(10 * c + n), "JPEG"))
    return folder


def build(folder: Path) -> Material:
    """Make the material in a folder; what another process made there already is used."""
    from metrix.retrieve.indexing import index_images
    from metrix.runs.trained_model import open_run
    from metrix.train import Config, train

    made = Material(folder)
    if made.index.exists():
        return made
    folder.mkdir(parents=True, exist_ok=True)
    write_photos(made.photos)
    if not made.run.exists():
        train(Config().with_values(SETTINGS), made.run)
    index_images(open_run(made.run), [made.photos], folder / "building.index").index.close()
    shutil.move(folder / "building.index", made.index)
    return made
