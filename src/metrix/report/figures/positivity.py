"""Positivity: how often a mixed example acts as a positive, against λ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from metrix.evaluate import Positivity
from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.page import Figure


def draw_positivity(
    measured: Mapping[str, Positivity], title: str = "", caption: str = "", order: Sequence[str] = ()
) -> Figure:
    """P(Pos(a,v)) against λ: measured and, where it is known, by eq. prob (fig. gradient-plot).

    Args:
        measured: the curves, by the name in the legend; a single one may be named "".
        title: above the axes.
        caption: below the figure.
        order: names in the order of their colours, so that a run has one colour in all figures of a page.
    """
    given = []
    for n, (name, found) in enumerate(measured.items()):
        prefix = f"{name}, " if name else ""
        number = None if len(measured) == 1 else order.index(name) if name in order else n
        given.append(Curve(f"{prefix}empirical", found.lams, found.empirical, number=number))
        if not np.isnan(found.theoretical).all():
            theory = Curve(f"{prefix}theoretical", found.lams, found.theoretical, reference=True, number=number)
            given.append(theory)
        if np.nanmax(found.zero, initial=0.0) > 0.005:  # a hinge is flat there
            given.append(Curve(f"{prefix}of these, derivative 0", found.lams, found.zero, part=True, number=number))
    figure = draw_curves(
        given, "interpolation factor λ", "P(Pos(a, v))", name="positivity", title=title, caption=caption, bounds=(0, 1)
    )
    (axes,) = figure.drawing.axes
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return figure
