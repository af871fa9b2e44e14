"""Precision, recall and false-accept rate against the similarity that two images need to count as the same."""

from __future__ import annotations

import numpy as np

from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.page import Figure
from metrix.search import Pairs, Threshold


def draw_threshold(pairs: Pairs, chosen: Threshold, caption: str = "") -> Figure:
    """The three curves, with the chosen similarity as a line and its interval as a band."""
    found = pairs.curves()
    shown = slice(max(0, int(np.searchsorted(-found["recall"], -0.9999)) - 50), None)  # where anything is decided
    step = max(1, len(found["similarity"][shown]) // 400)
    x = found["similarity"][shown][::step]
    given = [Curve(name, x, found[name][shown][::step]) for name in ("precision", "recall")]
    given.append(Curve("false-accept rate", x, found["far"][shown][::step]))
    figure = draw_curves(given, "similarity", "share of pairs", name="threshold", caption=caption, bounds=(0, 1))
    (axes,) = figure.drawing.axes
    axes.axvline(chosen.similarity, color="0.3", linewidth=1.2)
    if chosen.high > chosen.low:
        axes.axvspan(chosen.low, chosen.high, color="0.5", alpha=0.15, linewidth=0)
    axes.set(ylim=(0, 1))
    return figure
