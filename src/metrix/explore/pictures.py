"""Images as the page and the service send them: checked by their headers, encoded anew."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metrix.data.images import readable_formats
from metrix.errors import DataError


class TooManyPixelsError(DataError):
    """An image that would take too much memory when decoded."""


def check_pixels(image: bytes | Path, most: int) -> None:
    """An error if an image is larger than `most` pixels; only its header is read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=readable_formats()) as file:
            width, height = file.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixelsError(f"image: expected at most {most:,} pixels, got more ({error})") from error
    except Exception:
        return  # decoding it says what is wrong
    if width * height > most:
        raise TooManyPixelsError(f"image: expected at most {most:,} pixels, got {width:,} x {height:,}; shrink it")


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels (height, width) as PNG or (height, width, 3) as JPEG."""
    from PIL import Image

    file = io.BytesIO()
    if pixels.ndim == 2:
        Image.fromarray(pixels).save(file, "PNG")
    else:
        Image.fromarray(pixels).save(file, "JPEG", quality=88)
    return file.getvalue()
