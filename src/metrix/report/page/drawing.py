"""Matplotlib figures as SVG and PNG; the same figure gives the same bytes.

An SVG keeps its text as text and takes its colours for ink, grid and background from the page around it, so it fits a
light page, a dark page and print. As a file of its own it follows the system's preference for light or dark.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from metrix.extras import require_extra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GRID, PAPER = "#2b2f36", "#d9dde3", "#fefefe"  # replaced by the colours of the page
# Distinguishable with colour blindness, and in greyscale by their markers and dashes.
COLOURS = ("#2a7fc1", "#d9722b", "#1f9e78", "#c568a5", "#b08a00", "#7d6bc4", "#6f7680")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)))
DOTS_PER_INCH = 150

_LOOK: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "text.parse_math": False,  # a $ in a name is shown as $
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.fonttype": "none",  # text stays text: small files, selectable, in the page's font
    "svg.hashsalt": "metrix",
    "svg.image_inline": True,
}
_STANDALONE = (
    f"<style>svg{{color:{INK};--grid:{GRID};--paper:#fff;font-family:sans-serif}}"
    "@media(prefers-color-scheme:dark){svg{color:#d7dbe0;--grid:#3a4048;--paper:#15181c}}</style>"
)


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the common style to figures made inside; matplotlib's settings are restored afterwards."""
    require_extra("matplotlib")
    from matplotlib import rc_context

    with rc_context(cast("Any", _LOOK)), warnings.catch_warnings():
        # A name in a script that the font lacks stays text and is shown in a font of the reader.
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .*missing from")
        yield


def new_figure(width: float = 5.2, height: float = 3.6) -> Figure:
    """An empty figure of this size in inches, unknown to pyplot."""
    require_extra("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def render_svg(figure: Figure) -> str:
    """The figure as an SVG element for a page: without header, and with no ids but those it refers to."""
    buffer = io.StringIO()
    with figure_style():
        figure.savefig(buffer, format="svg", dpi=DOTS_PER_INCH, transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = text.replace("font-family: 'DejaVu Sans'", "font-family: inherit")
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", lambda tag: _shorten(tag.group()), text)
    text = re.sub(r">\s*\n\s*<", "><", text)
    for colour, name in ((INK, "currentColor"), (GRID, f"var(--grid,{GRID})"), (PAPER, "var(--paper,#fff)")):
        text = text.replace(colour, name)
    return text


def prefix_ids(drawn: str, prefix: str) -> str:
    """The SVG with a prefix on all ids, so that they differ from those of other figures on the page."""
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}", drawn)


def make_standalone(drawn: str) -> str:
    """The SVG as a file of its own, for light and dark backgrounds."""
    head, rest = drawn.split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}>{_STANDALONE}{rest}'


def render_png(figure: Figure) -> bytes:
    """The figure as a PNG on white."""
    buffer = io.BytesIO()
    with figure_style():
        figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, facecolor="white", metadata={"Software": None})
    return buffer.getvalue()


def _shorten(tag: str) -> str:
    """The tag with coordinates cut to a hundredth of a point, and without the ids of groups."""
    if tag.startswith("<g "):
        tag = re.sub(r' id="[^"]*"', "", tag)
    return re.sub(r"(\d\.\d\d)\d+", r"\1", tag) if len(tag) < 100_000 or "base64" not in tag else tag
