"""Read an image file of any format and mode as upright RGB."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import stat
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

from metrix.data.shards import find_member
from metrix.errors import DataError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from metrix.data.catalogue import Box

ImageSource = Union[str, "os.PathLike[str]", IO[bytes], "Image.Image", NDArray[Any]]

# An explicit list, because Pillow would also try formats that run another program (EPS).
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
MAX_PIXELS = 89_478_485  # a quarter of a GB in three channels, the limit from which on Pillow warns
LARGE = 4_000_000  # pixels from which on the memory of a decoded image is given back to the system at once
HEIC_SUFFIXES = {".heic", ".heif"}
SUFFIXES = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"),
}


class ImageError(DataError):
    """An image file that cannot be decoded: `path` and `reason`."""

    def __init__(self, path: Path | str, reason: str) -> None:
        super().__init__(f"cannot read the image {path}: {reason}")
        self.path, self.reason = str(path), reason

    def __reduce__(self) -> tuple[type[ImageError], tuple[str, str]]:
        return type(self), (self.path, self.reason)  # loader processes send it to the main process


def load_image(path: Any, box: Box | None = None, short_side: int | None = None) -> Image.Image:
    """Read an image file as upright RGB.

    The EXIF orientation is applied, transparent pixels become white, 16-bit grey is scaled to 8 bits, and palettes,
    grey, CMYK and other modes are converted.

    Args:
        path: the file, a member of a tar file (`photos.tar/cats/1.jpg`), or an open file.
        box: (left, upper, right, lower) in pixels of the upright image, to crop it.
        short_side: shrink the image so that its shorter side has this length; a smaller image stays as it is.

    Raises:
        ImageError: if the file is missing or cannot be decoded.

    >>> import tempfile
    >>> from PIL import Image
    >>> file = Path(tempfile.mkdtemp()) / "photo.jpg"
    >>> Image.new("L", (400, 300)).save(file)
    >>> image = load_image(file, short_side=30)
    >>> image.mode, image.size
    ('RGB', (40, 30))
    """
    try:
        source = _find_source(path)
        with contextlib.ExitStack() as room:  # left after the variables of _decode, and so the memory, are gone
            return _decode(source, box, short_side, room)
    except FileNotFoundError:
        raise ImageError(path, "no such file; it was moved or deleted") from None
    except Exception as error:
        # The decoders of Pillow raise all kinds of exceptions for damaged files.
        raise ImageError(path, _describe(error, path)) from error


def _decode(path: Any, box: Box | None, short_side: int | None, room: contextlib.ExitStack) -> Image.Image:
    """Decode an image as `load_image` does; `room` holds a part of the budget of pixels from then on."""
    from PIL import Image

    with Image.open(path, formats=readable_formats()) as file:
        if file.width * file.height > max_pixels():  # whatever size it is then decoded at: it is broken, or not
            raise DataError(_describe_size(file.width * file.height))
        if short_side is not None and box is None:
            # JPEG can be decoded at a half, a quarter or an eighth of its size, which is faster. At least twice
            # the wanted length is kept, so that the final resize still filters well.
            file.draft(None, (2 * short_side, 2 * short_side))
        pixels = file.width * file.height
        room.enter_context(_decoding.hold(pixels))
        if pixels >= LARGE:
            room.callback(_return_freed_memory)
        file.load()
        image = _convert_to_rgb(_rotate_upright(file))
        if box is not None:
            image = _crop(image, box)
        return image if short_side is None else _shrink(image, short_side)


def read_pixels(image: ImageSource, *, short_side: int | None = None, grey_size: int | None = None) -> Tensor:
    """An image as a uint8 tensor, (3, height, width) or, with `grey_size`, (1, grey_size, grey_size).

    Args:
        image: a path, an open file, an image of Pillow, or an array of uint8: (height, width), or with 1, 3 or 4
            channels last.
        short_side: shrink the image so that its shorter side has this length; a smaller image stays as it is.
        grey_size: make a grey square of this size, as the built-in glyphs are, instead of a colour image.

    Raises:
        ImageError: if a file is missing or cannot be decoded.
        DataError: if an array is not an image.

    >>> read_pixels(np.zeros((30, 40), np.uint8)).shape
    torch.Size([3, 30, 40])
    """
    import torch
    from PIL import Image

    if isinstance(image, np.ndarray):
        image = _from_array(image)
    if isinstance(image, Image.Image):
        upright = _convert_to_rgb(_rotate_upright(image))
        upright = upright if short_side is None else _shrink(upright, short_side)
    else:
        upright = load_image(image, None, short_side)
    if grey_size is None:
        return torch.from_numpy(np.array(upright)).permute(2, 0, 1)
    grey = upright.convert("L")
    grey = grey if grey.size == (grey_size, grey_size) else grey.resize((grey_size, grey_size))
    return torch.from_numpy(np.array(grey))[None]


def _from_array(array: NDArray[Any]) -> Image.Image:
    from PIL import Image

    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    channels = 1 if array.ndim == 2 else array.shape[2] if array.ndim == 3 else 0
    if array.dtype != np.uint8 or channels not in (1, 3, 4) or 0 in array.shape:
        raise DataError(
            "image array: expected uint8 of shape (height, width) or (height, width, 1, 3 or 4), "
            f"got {array.dtype} of shape {array.shape}"
        )
    return Image.fromarray(np.ascontiguousarray(array))


def image_size(path: Path | str) -> tuple[int, int] | None:
    """Width and height from the header of a file; None if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(_find_source(path), formats=readable_formats()) as file:
            width, height = file.size
            return width, height
    except Exception:
        return None  # decoding the image will report the reason


def max_pixels() -> int:
    """The number of pixels up to which images are decoded: `METRIX_MAX_PIXELS`, or 89,478,485 as in Pillow.

    A file of some kilobytes can describe an image of gigabytes.
    """
    given = os.environ.get("METRIX_MAX_PIXELS", "")
    if not given:
        return MAX_PIXELS
    if not given.isdecimal() or int(given) < 1:
        raise DataError(f"METRIX_MAX_PIXELS: expected a number of pixels, got {given!r}")
    return int(given)


class PixelBudget:
    """Bounds how many pixels are decoded at the same time by all threads; a larger image is decoded alone.

    >>> budget = PixelBudget(100)
    >>> with budget.hold(1000):
    ...     budget.held
    1000
    """

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for an image of so many pixels, and take it while the block runs."""
        with self._changed:
            self._changed.wait_for(lambda: self.held == 0 or self.held + pixels <= self.most)
            self.held += pixels
        try:
            yield
        finally:
            with self._changed:
                self.held -= pixels
                self._changed.notify_all()

    def forget(self) -> None:
        """Start anew in a forked process, which does not have the threads that held something."""
        self.__init__(self.most)  # type: ignore[misc]


_decoding = PixelBudget(MAX_PIXELS)  # up to 24 bytes per pixel are in use while an image is converted


def _return_freed_memory() -> None:
    """Give freed memory back to the system; the allocator of Linux would keep it for each thread that freed some."""
    if (trim := _find_malloc_trim()) is not None:
        trim(0)


@functools.cache
def _find_malloc_trim() -> Any:
    """The function `malloc_trim` of glibc; None elsewhere."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    return getattr(ctypes.CDLL(None), "malloc_trim", None)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_decoding.forget)


def _find_source(path: Any) -> Any:
    """What Pillow can open: a regular file, the bytes of a member of a tar file, or a file that is open already.

    Pipes and devices, which would be waited for, are refused.
    """
    if not isinstance(path, str | os.PathLike):
        return path
    try:
        mode = os.stat(path).st_mode
    except (NotADirectoryError, FileNotFoundError):
        member = find_member(path)
        if member is None:
            raise
        return io.BytesIO(_require_bytes(member[0].read(member[1])))
    if not stat.S_ISREG(mode):
        raise DataError("not a regular file")
    return path


def _require_bytes(content: bytes) -> bytes:
    if not content:
        raise DataError("there is no image: it has no bytes")
    return content


def _describe_size(pixels: int) -> str:
    return f"{pixels:,} pixels are more than the limit of {max_pixels():,} (METRIX_MAX_PIXELS sets another)"


@functools.cache
def reads_heic() -> bool:
    """Whether HEIC images, as phones take them, can be read: with `pip install metrix[heic]`."""
    try:
        from pillow_heif import register_heif_opener
    except ImportError:
        return False
    register_heif_opener()
    return True


def readable_suffixes() -> set[str]:
    """The suffixes of files that are taken for images: `SUFFIXES`, and those of HEIC if it can be read."""
    return SUFFIXES | HEIC_SUFFIXES if reads_heic() else SUFFIXES


@functools.cache
def readable_formats() -> tuple[str, ...]:
    """The `FORMATS` that the installed Pillow supports, and HEIF with its extension."""
    from PIL import Image

    Image.init()
    reads_heic()
    # An image beyond the limit is reported as broken; Pillow's warning would only repeat it.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _describe(error: Exception, path: Any) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        heic = isinstance(path, str | os.PathLike) and Path(path).suffix.lower() in HEIC_SUFFIXES
        hint = "; HEIC needs pip install metrix[heic]" if heic and not reads_heic() else ""
        return f"not an image in a known format{hint}"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more pixels than the limit of {max_pixels():,} (METRIX_MAX_PIXELS sets another)"
    return f"{type(error).__name__}: {error}" if not isinstance(error, (OSError, DataError)) else str(error)


def _rotate_upright(image: Image.Image) -> Image.Image:
    from PIL import ImageOps

    with contextlib.suppress(Exception):  # damaged EXIF data in an image that can be decoded
        ImageOps.exif_transpose(image, in_place=True)  # else it would copy upright images too
    return image


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "F":
        raise DataError(
            "expected 8 or 16 bits per channel, got 32-bit floats, whose range is not defined; convert the file"
        )
    if image.mode == "I" or image.mode.startswith("I;16"):
        wide = np.asarray(image)
        wide = wide.copy() if wide.dtype == np.uint16 else wide.clip(0, 65535)
        wide //= 257  # in place, as what follows: large images decide how much memory is needed
        return Image.fromarray(wide.astype(np.uint8)).convert("RGB")
    if "transparency" in image.info or image.mode in ("LA", "La", "PA", "RGBA", "RGBa"):
        if image.mode == "La":
            image = image.convert("LA")
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _crop(image: Image.Image, box: Box) -> Image.Image:
    left, upper, right, lower = box
    left, upper = max(left, 0), max(upper, 0)
    right, lower = min(right, image.width), min(lower, image.height)
    if left >= right or upper >= lower:
        raise DataError(f"the crop box {box} is outside the image of {image.width}x{image.height} pixels")
    return image.crop((left, upper, right, lower))


def _shrink(image: Image.Image, short_side: int) -> Image.Image:
    from PIL import Image

    short = min(image.size)
    if short <= short_side:
        return image
    width, height = (max(1, round(side * short_side / short)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)
