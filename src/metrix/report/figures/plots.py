"""Plots of the analysis, and how a plot becomes files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from metrix.evaluate import Positivity
from metrix.report.figures.curves import Curve, curves
from metrix.report.page import Figure
from metrix.report.page.drawing import png, standalone
from metrix.runs.embedding import write_or_explain


def positivity_figure(
    measured: Mapping[str, Positivity], title: str = "", caption: str = "", order: Sequence[str] = ()
) -> Figure:
    """P(Pos(a,v)) against λ: counted, and where it is known, by eq. prob (fig. gradient-plot).

    Both curves of one of several have one colour, that of its place in `order`.
    """
    given = []
    for n, (name, found) in enumerate(measured.items()):
        prefix = f"{name}, " if name else ""
        number = None if len(measured) == 1 else order.index(name) if name in order else n
        given.append(Curve(f"{prefix}empirical", found.lams, found.empirical, number=number))
        if not np.isnan(found.theoretical).all():
            theory = Curve(f"{prefix}theoretical", found.lams, found.theoretical, reference=True, number=number)
            given.append(theory)
        if np.nanmax(found.zero, initial=0.0) > 0.005:  # a hinge that is flat there
            given.append(Curve(f"{prefix}of these, derivative 0", found.lams, found.zero, part=True, number=number))
    figure = curves(given, "interpolation factor λ", "P(Pos(a, v))", name="positivity", title=title, caption=caption)
    (axes,) = figure.drawing.axes
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.03, 1.03))
    return figure


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg, each whole or not at all."""
    places = {
        folder / f"{figure.name}.png": png(figure.drawing),
        folder / f"{figure.name}.svg": standalone(figure.svg).encode(),
    }
    for path, content in places.items():
        write_or_explain(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    return list(places)
