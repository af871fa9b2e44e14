"""Pictures as small files within a page, and a gallery as one drawing."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metrix.report.page.blocks import Gallery, Picture
from metrix.report.page.drawing import INK, look, new_figure
from metrix.report.page.escaping import in_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 120  # pixels of a thumbnail, so that a page of many pictures stays small
FEW_PIXELS = 64  # smaller pictures are shown with their pixels
RIGHT, WRONG = "#1f9e78", "#d1495b"  # teal and red; ✓ and ✗ say the same without colour


def shrunk(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A picture with no side above SIDE.

    >>> shrunk(np.zeros((240, 480), np.uint8)).shape
    (60, 120)
    """
    from PIL import Image

    if max(pixels.shape[:2]) <= SIDE:
        return pixels
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(image)


def data_address(picture: Picture) -> str:
    """A picture as an address that holds it: PNG for grey ones, JPEG for colour."""
    from PIL import Image

    image, buffer = Image.fromarray(shrunk(picture.pixels)), io.BytesIO()
    if image.mode == "L":
        image.save(buffer, "PNG", optimize=True)
    else:
        image.convert("RGB").save(buffer, "JPEG", quality=82, optimize=True)
    kind = "png" if image.mode == "L" else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def has_few_pixels(picture: Picture) -> bool:
    """Whether smoothing would blur it."""
    return bool(max(picture.pixels.shape[:2]) < FEW_PIXELS)


def gallery_drawing(gallery: Gallery) -> Figure:
    """A gallery as a drawing: a line for each query and searcher, with frames, ✓ and ✗."""
    lines = [(n, query, name) for n, query in enumerate(gallery.queries) for name in query.found]
    widest = max((len(hits) for query in gallery.queries for hits in query.found.values()), default=0)
    several = len({name for _, _, name in lines}) > 1
    with look():
        figure = new_figure(1.05 * (widest + 1) + 0.3, 1.12 * max(len(lines), 1) + 0.2)
        axes = figure.add_subplot()
        axes.set(xlim=(-0.55, widest + 0.7), ylim=(max(len(lines), 1) - 0.4, -0.55), aspect="equal")
        axes.axis("off")
        for y, (n, query, name) in enumerate(lines):
            if y == 0 or lines[y - 1][0] != n:
                _place(axes, query.picture, 0, y, INK, "-", in_figure(query.picture.label, 18))
            if several:
                axes.text(0.55, y, in_figure(name, 16), rotation=90, ha="center", va="center", fontsize=5.5)
            for x, hit in enumerate(query.found[name], 1):
                colour, dashes, sign = (RIGHT, "-", "✓") if hit.right else (WRONG, "--", "✗")
                text = f"{sign} {in_figure(hit.picture.label, 16)}"
                _place(axes, hit.picture, x + 0.15, y, colour, dashes, text)
    return figure


def _place(axes: Axes, picture: Picture, x: float, y: float, colour: str, dashes: str, text: str) -> None:
    from matplotlib.patches import Rectangle

    pixels = shrunk(picture.pixels)
    height, width = pixels.shape[:2]
    w, h = (0.42 * side / max(height, width) for side in (width, height))
    grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if pixels.ndim == 2 else {}
    smoothing = "nearest" if has_few_pixels(picture) else "antialiased"
    axes.imshow(pixels, extent=(x - w, x + w, y + h - 0.06, y - h - 0.06), interpolation=smoothing, **grey)  # type: ignore[arg-type]
    frame = {"fill": False, "edgecolor": colour, "linewidth": 2.2, "linestyle": dashes}
    axes.add_patch(Rectangle((x - w, y - h - 0.06), 2 * w, 2 * h, **frame))  # type: ignore[arg-type]
    axes.text(x, y + 0.46, text, ha="center", va="center", fontsize=5.5, color=colour)
