"""Plots of the analysis, and how a plot becomes files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from metrix.evaluate import Positivity
from metrix.report.figures.curves import Curve, curves
from metrix.report.page import Figure
from metrix.report.page.drawing import png, standalone_svg
from metrix.train.embedding import write_or_explain


def positivity_figure(measured: Mapping[str, Positivity], title: str = "", caption: str = "") -> Figure:
    """P(Pos(a,v)) against λ: counted, and where it is known, by eq. prob (fig. gradient-plot)."""
    given = []
    for name, found in measured.items():
        prefix = f"{name}, " if name else ""
        counted = Curve(f"{prefix}empirical", found.lams, found.empirical)
        given.append(counted)
        if not np.isnan(found.theoretical).all():
            like = counted.name if len(measured) > 1 else None
            given.append(Curve(f"{prefix}theoretical", found.lams, found.theoretical, reference=True, like=like))
        if len(measured) == 1 and np.nanmax(found.zero, initial=0.0) > 0.005:
            given.append(Curve("of these, derivative 0", found.lams, found.zero))
    figure = curves(given, "interpolation factor λ", "P(Pos(a, v))", name="positivity", title=title, caption=caption)
    (axes,) = figure.drawing.axes
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.03, 1.03))
    return figure


def save(figure: Figure, folder: Path) -> list[Path]:
    """Write NAME.png and NAME.svg, each whole or not at all."""
    places = {
        folder / f"{figure.name}.png": png(figure.drawing),
        folder / f"{figure.name}.svg": standalone_svg(figure.drawing).encode(),
    }
    for path, content in places.items():
        write_or_explain(path, lambda temporary, content=content: temporary.write_bytes(content))  # type: ignore[misc]
    return list(places)
