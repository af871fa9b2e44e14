"""Small photos in class folders, drawn so that images of a class are alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def draw_photo(class_number: int, number: int, side: int = 48) -> Image.Image:
    """A striped picture: the stripes' width and colour are the class's, their place and noise the image's."""
    rng = np.random.default_rng(1000 * class_number + number)
    colour = np.random.default_rng(class_number).integers(60, 255, 3)
    across = np.arange(side) // (2 + 2 * class_number) % 2
    pixels = np.roll(across, rng.integers(side))[None, :, None] * colour
    noisy = pixels + rng.integers(0, 40, (side, side, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def write_photos(folder: Path, classes: int = 3, per_class: int = 6) -> Path:
    """Class folders `kind 0`, `kind 1`, ... of JPEG files."""
    for c in range(classes):
        (folder / f"kind {c}").mkdir(parents=True, exist_ok=True)
        for n in range(per_class):
            draw_photo(c, n).save(folder / f"kind {c}" / f"{n}.jpg", quality=95)
    return folder
