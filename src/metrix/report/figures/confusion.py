"""A confusion matrix: which class is found first by the queries of each class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.messages import count
from metrix.report.page import Figure
from metrix.report.page.drawing import COLOURS, figure_style, new_figure
from metrix.report.page.escaping import shorten_for_figure

NUMBERED_AT_MOST = 16  # columns; numbers in more cells would be too small to read


def draw_confusion(
    own: Sequence[Any], found: Sequence[Any], counts: NDArray[Any], *, name: str, title: str = "", caption: str = ""
) -> Figure:
    """Draw the share of the queries of each class (rows) that find each class (columns) first.

    Args:
        own: classes of the queries.
        found: classes that they find.
        counts: (own, found) queries.
        name: of the figure's files.
        title: above the axes.
        caption: below the figure.
    """
    from matplotlib.colors import to_rgb

    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    right = np.array([[str(a) == str(b) for b in found] for a in own]).reshape(shares.shape)
    colours = np.where(right[..., None], to_rgb(COLOURS[0]), to_rgb(COLOURS[1]))
    pixels = np.concatenate([colours, np.sqrt(shares)[..., None]], axis=2)  # the root shows rare confusions, too
    numbered = len(found) <= NUMBERED_AT_MOST
    side = 0.34 if numbered else 0.2
    with figure_style():
        drawing = new_figure(max(3.2, 1.6 + side * len(found)), max(2.4, 1.5 + side * len(own)))
        axes = drawing.add_subplot()
        axes.imshow(pixels, interpolation="nearest", aspect="equal")
        axes.grid(visible=False)
        axes.set(xlabel="class found first", ylabel="class of the query", title=shorten_for_figure(title, 40))
        axes.set_xticks(range(len(found)), [shorten_for_figure(str(one), 18) for one in found], rotation=90, fontsize=8)
        axes.set_yticks(range(len(own)), [shorten_for_figure(str(one), 18) for one in own], fontsize=8)
        axes.tick_params(length=0)
        if numbered:
            for y, x in zip(*np.nonzero(counts), strict=True):
                axes.text(x, y, f"{100 * shares[y, x]:.0f}", ha="center", va="center", fontsize=7)
    wrong = int(counts[~right].sum())
    of = f"{count(len(own), 'class')} of queries against {count(len(found), 'class')} found"
    said = f"{of}; {wrong:,} of {int(counts.sum()):,} are wrong"
    data: list[list[object]] = [["class of the query", "class found first", "queries"]]
    data += [[own[y], found[x], int(counts[y, x])] for y, x in zip(*np.nonzero(counts), strict=True)]
    return Figure(drawing, said, caption, name, data)
