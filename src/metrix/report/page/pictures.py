"""Pictures embedded in a page, and a gallery drawn as one figure."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metrix.report.page.blocks import Gallery, Hit, Picture
from metrix.report.page.drawing import INK, figure_style, new_figure
from metrix.report.page.escaping import shorten_for_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIDE = 120  # pixels of a thumbnail; keeps a page with many pictures small
BESIDE = 2  # searchers whose results are drawn side by side
FEW_PIXELS = 64  # pictures smaller than this are enlarged without smoothing
RIGHT, WRONG = "#1f9e78", "#d1495b"  # teal and red; ✓ and ✗ mean the same without colour


def shrink(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture, scaled down if a side exceeds SIDE.

    >>> shrink(np.zeros((240, 480), np.uint8)).shape
    (60, 120)
    """
    from PIL import Image

    if max(pixels.shape[:2]) <= SIDE:
        return pixels
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return np.asarray(image)


def encode_picture(picture: Picture) -> str:
    """The picture as a data URI: PNG if it is greyscale, JPEG if it is in colour."""
    from PIL import Image

    image, buffer = Image.fromarray(shrink(picture.pixels)), io.BytesIO()
    if image.mode == "L":
        image.save(buffer, "PNG", optimize=True)
    else:
        image.convert("RGB").save(buffer, "JPEG", quality=82, optimize=True)
    kind = "png" if image.mode == "L" else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def has_few_pixels(picture: Picture) -> bool:
    """Whether it is so small that smoothing would blur it."""
    return bool(max(picture.pixels.shape[:2]) < FEW_PIXELS)


def draw_gallery(gallery: Gallery) -> Figure:
    """The gallery as a figure with frames, ✓ and ✗: a row for each query, with two searchers side by side.

    More searchers have a row each.
    """
    names = list(dict.fromkeys(name for query in gallery.queries for name in query.found))
    if len(names) == BESIDE:
        return _draw_beside(gallery, names)
    lines = [(n, query, name) for n, query in enumerate(gallery.queries) for name in query.found]
    widest = max((len(hits) for query in gallery.queries for hits in query.found.values()), default=0)
    several = len(names) > 1
    with figure_style():
        figure = new_figure(1.05 * (widest + 1) + 0.3, 1.12 * max(len(lines), 1) + 0.2)
        axes = figure.add_subplot()
        axes.set(xlim=(-0.55, widest + 0.7), ylim=(max(len(lines), 1) - 0.4, -0.55), aspect="equal")
        axes.axis("off")
        for y, (n, query, name) in enumerate(lines):
            if y == 0 or lines[y - 1][0] != n:
                _draw_picture(axes, query.picture, 0, y, INK, "-", shorten_for_figure(query.picture.label, 18))
            if several:
                axes.text(0.55, y, shorten_for_figure(name, 16), rotation=90, ha="center", va="center", fontsize=5.5)
            _draw_hits(axes, query.found[name], 1.15, y)
    return figure


def _draw_beside(gallery: Gallery, names: Sequence[str]) -> Figure:
    widest = max(len(query.found.get(name, ())) for query in gallery.queries for name in names)
    starts = {name: 1.25 + number * (widest + 0.35) for number, name in enumerate(names)}
    width, rows = 0.25 + starts[names[-1]] + widest, len(gallery.queries)
    with figure_style():
        figure = new_figure(0.85 * width, 0.91 * rows + 0.3)
        axes = figure.add_subplot()
        axes.set(xlim=(-0.5, width - 0.75), ylim=(rows - 0.42, -0.8), aspect="equal")
        axes.axis("off")
        for name, start in starts.items():
            axes.text(start - 0.42, -0.64, shorten_for_figure(name, 40), ha="left", va="center", fontsize=8.5)
        for y, query in enumerate(gallery.queries):
            _draw_picture(axes, query.picture, 0, y, INK, "-", shorten_for_figure(query.picture.label, 18))
            for name, start in starts.items():
                _draw_hits(axes, query.found.get(name, ()), start, y)
    return figure


def _draw_hits(axes: Axes, hits: Sequence[Hit], start: float, y: float) -> None:
    for x, hit in enumerate(hits):
        colour, dashes, sign = (RIGHT, "-", "✓ ") if hit.right else (WRONG, "--", "✗ ")
        if hit.right is None:
            colour, dashes, sign = INK, "-", ""
        text = f"{sign}{shorten_for_figure(hit.picture.label, 16)}"
        _draw_picture(axes, hit.picture, start + x, y, colour, dashes, text)


def _draw_picture(axes: Axes, picture: Picture, x: float, y: float, colour: str, dashes: str, text: str) -> None:
    from matplotlib.patches import Rectangle

    pixels = shrink(picture.pixels)
    height, width = pixels.shape[:2]
    w, h = (0.42 * side / max(height, width) for side in (width, height))
    grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if pixels.ndim == 2 else {}
    smoothing = "nearest" if has_few_pixels(picture) else "antialiased"
    axes.imshow(pixels, extent=(x - w, x + w, y + h - 0.06, y - h - 0.06), interpolation=smoothing, **grey)  # type: ignore[arg-type]
    frame = {"fill": False, "edgecolor": colour, "linewidth": 2.2, "linestyle": dashes}
    axes.add_patch(Rectangle((x - w, y - h - 0.06), 2 * w, 2 * h, **frame))  # type: ignore[arg-type]
    axes.text(x, y + 0.46, text, ha="center", va="center", fontsize=5.5, color=colour)
