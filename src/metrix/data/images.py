"""Reading one image file, whatever its mode, as upright RGB."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metrix.errors import DataError

if TYPE_CHECKING:
    from PIL import Image

    from metrix.data.catalogue import Box

# Named one by one: Pillow would otherwise also try formats that run an outside program (EPS).
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"),
}


class ImageError(DataError):
    """An image file that cannot be decoded; `path` and `reason` say which and why."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"cannot read the image {path}: {reason}")
        self.path, self.reason = str(path), reason

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # it crosses from loader processes


def load_image(path: Path | str, box: Box | None = None, short_side: int | None = None) -> Image.Image:
    """An image file as upright RGB.

    EXIF orientation is applied; transparency lies on white; 16-bit grey is scaled to 8; palettes, grey,
    CMYK and other modes are converted. `box` (left, upper, right, lower) crops the upright image.
    `short_side` shrinks, never enlarges, to that length of the shorter side.

    >>> load_image("photo.jpg", short_side=256).size  # doctest: +SKIP
    (341, 256)
    """
    from PIL import Image

    try:
        with Image.open(path, formats=_formats()) as file:
            if short_side is not None and box is None:
                # JPEG decodes at a half, a quarter or an eighth for less work; twice the wanted length
                # stays, so that the last step is still a good filter.
                file.draft(None, (2 * short_side, 2 * short_side))
            file.load()
            image = _rgb(_upright(file))
        if box is not None:
            image = _crop(image, box)
        return image if short_side is None else _shrink(image, short_side)
    except FileNotFoundError:
        raise ImageError(path, "there is no such file (it was moved or deleted)") from None
    except Exception as error:
        # A damaged file fails in any of Pillow's decoders, with any kind of exception.
        raise ImageError(path, _reason(error)) from error


def image_size(path: Path | str) -> tuple[int, int] | None:
    """Width and height as the header says; None if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(path, formats=_formats()) as file:
            width, height = file.size
            return width, height
    except Exception:
        return None  # the decoder will say why


@functools.cache
def _formats() -> tuple[str, ...]:
    """Those of FORMATS that this Pillow was built with."""
    from PIL import Image

    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _reason(error: Exception) -> str:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "not an image in a known format"
    return f"{type(error).__name__}: {error}" if not isinstance(error, (OSError, DataError)) else str(error)


def _upright(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    try:
        return ImageOps.exif_transpose(image)
    except Exception:
        return image  # damaged EXIF in a picture that is otherwise whole


def _rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "F":
        raise DataError("32-bit float pixels have no agreed range; save it with 8 or 16 bits")
    if image.mode == "I" or image.mode.startswith("I;16"):
        wide = np.asarray(image).astype(np.int64)
        return Image.fromarray((wide.clip(0, 65535) // 257).astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        if image.mode == "La":
            image = image.convert("LA")
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _crop(image: Image.Image, box: Box) -> Image.Image:
    left, upper, right, lower = box
    left, upper = max(left, 0), max(upper, 0)
    right, lower = min(right, image.width), min(lower, image.height)
    if left >= right or upper >= lower:
        raise DataError(f"the box {box} holds nothing of an image of {image.width}x{image.height}")
    return image.crop((left, upper, right, lower))


def _shrink(image: Image.Image, short_side: int) -> Image.Image:
    from PIL import Image

    short = min(image.size)
    if short <= short_side:
        return image
    width, height = (max(1, round(side * short_side / short)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)
