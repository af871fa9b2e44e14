"""Images as the page and the service read and send them: regular files, checked by their headers, encoded anew."""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from metrix.data import ImageError, load_image
from metrix.data.catalogue import Box
from metrix.data.images import readable_formats
from metrix.data.shards import find_member, image_status
from metrix.errors import DataError

MOST_SCANS = 500  # of an upload: each may be some bytes long, and goes over all of its pixels
MOST_SIDE = 65_500  # pixels, of a JPEG
SLOW_FORMAT = "JPEG2000"  # some hundred bytes of it can take seconds to decode


class TooManyPixelsError(DataError):
    """An image that would take too much memory when decoded."""


@dataclass(frozen=True)
class Picture:
    """An image as a file; `content` is None if the client has it already. Another content has another `tag`."""

    content: bytes | None
    tag: str


def open_regular(path: Path) -> IO[bytes]:
    """A file, or a member of a tar file, to read; a pipe or a device, which would be waited for, is refused.

    Raises:
        ImageError: there is none, or it is not a regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        member = find_member(path)
        if member is not None:
            return io.BytesIO(member[0].read(member[1]))
        number = os.open(path, flags)
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise ImageError(path, "not a regular file")
    except FileNotFoundError:
        raise ImageError(path, "no such file; it was moved or deleted") from None
    except OSError as error:
        raise ImageError(path, error.strerror or "it cannot be opened") from None
    return os.fdopen(number, "rb")


def read_picture(path: Path, box: Box | None, size: int, pixels: int, known: str = "") -> Picture:
    """The image in a file, cropped to a box, with its shorter side at most `size`.

    Args:
        path: the file.
        box: what is shown of it; all by default.
        size: of the shorter side.
        pixels: that the file may have.
        known: the tag of the picture that the client has.

    Raises:
        ImageError: the file cannot be read, or is not an image.
        TooManyPixelsError: it is larger than `pixels`.
    """
    with open_regular(path) as file:
        tag = name_picture(path, box, size, *_describe_state(path, file))
        if tag == known:
            return Picture(None, tag)
        count_pixels(file, pixels, slow_formats=True)
        file.seek(0)
        try:
            image = load_image(file, box, size)
        except ImageError as error:
            raise ImageError(path, error.reason) from error
    return Picture(encode(np.array(image)), tag)


def _describe_state(path: Path, file: IO[bytes]) -> tuple[int, ...]:
    """Numbers that change when the file does."""
    if isinstance(file, io.BytesIO):
        return tuple(image_status(path))
    status = os.fstat(file.fileno())
    return status.st_mtime_ns, status.st_size, status.st_ino


def name_picture(*parts: object) -> str:
    """The tag of a picture that is made of these."""
    return f'"{hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:24]}"'


def count_pixels(image: bytes | IO[bytes], most: int, *, slow_formats: bool = False) -> int:
    """The pixels of an image, by its header; 0 if it cannot be read, of which decoding it says more.

    Raises:
        TooManyPixelsError: there are more than `most`.
        DataError: it is of a format that takes very long to decode, unless these are allowed.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(image) if isinstance(image, bytes) else image, formats=readable_formats()) as file:
            width, height, kind = int(file.width), int(file.height), file.format
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise TooManyPixelsError(f"image: expected at most {most:,} pixels, got more ({error})") from error
    except Exception:
        return 0
    if kind == SLOW_FORMAT and not slow_formats:
        raise DataError("image: expected JPEG, PNG or another common format, got JPEG 2000; convert it")
    if kind in ("JPEG", "MPO") and isinstance(image, bytes) and image.count(b"\xff\xda") > MOST_SCANS:
        raise DataError(f"image: expected at most {MOST_SCANS} scans in a JPEG, got more; save it again")
    if width * height > most:
        raise TooManyPixelsError(f"image: expected at most {most:,} pixels, got {width:,} x {height:,}; shrink it")
    return width * height


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """Pixels (height, width) as PNG or (height, width, 3) as JPEG, shrunk to what a JPEG can hold."""
    from PIL import Image

    file, image = io.BytesIO(), Image.fromarray(pixels)
    if pixels.ndim == 2:
        image.save(file, "PNG")
    else:
        image.thumbnail((MOST_SIDE, MOST_SIDE))
        image.save(file, "JPEG", quality=88)
    return file.getvalue()


PictureReader = Callable[[int, int, str], Picture]  # of a row, at a size, unless the client has it already
