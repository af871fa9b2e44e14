"""How sure enrolled and unknown images are to be enrolled, and the threshold between them."""

from __future__ import annotations

import numpy as np

from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.page import Figure
from metrix.search.open_set import ChosenOpenSet

POINTS = 400


def draw_open_set(chosen: ChosenOpenSet, caption: str = "") -> Figure:
    """The share of enrolled and of unknown images that each threshold accepts, with the chosen one as a line."""
    x = np.linspace(0, 1, POINTS + 1)
    given = [
        Curve(name, x, np.array([(values >= one).mean() for one in x]))
        for name, values in (("enrolled", chosen.known), ("unknown", chosen.unknown))
    ]
    axis = "probability of being of an enrolled class, at least"
    figure = draw_curves(given, axis, "share of images", name="open-set", caption=caption, bounds=(0, 1))
    (axes,) = figure.drawing.axes
    axes.axvline(chosen.open_set.probability, color="0.3", linewidth=1.2)
    axes.set(ylim=(0, 1))
    return figure
