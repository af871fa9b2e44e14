"""Plots, as PNG and SVG: figures of their own, no global state of matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from metrix.evaluate import Positivity
from metrix.train.embedding import write_or_explain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#1f5fa8", "#d9722b", "#8a8a8a"


def positivity_figure(curves: Positivity, title: str) -> Figure:
    """P(Pos(a,v)) against λ: counted, and where it is known, by eq. prob (fig. gradient-plot)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(curves.lams, curves.empirical, color=BLUE, marker="o", markersize=4, label="empirical")
    if not np.isnan(curves.theoretical).all():
        axes.plot(curves.lams, curves.theoretical, color=ORANGE, linestyle="--", linewidth=2, label="theoretical")
    if np.nanmax(curves.zero, initial=0.0) > 0.005:
        axes.plot(curves.lams, curves.zero, color=GREY, linestyle=":", label="of these, derivative 0")
    axes.set_xlabel("interpolation factor λ")
    axes.set_ylabel("P(Pos(a, v))")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.03, 1.03)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False)
    axes.set_title(title, fontsize=10)
    return figure


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write NAME.png and NAME.svg, each whole or not at all."""
    return [_saved(figure, folder / f"{name}.{kind}", kind) for kind in ("png", "svg")]


def _saved(figure: Figure, path: Path, kind: str) -> Path:
    from matplotlib import rc_context

    def write(temporary: Path) -> None:
        # A fixed salt and no date: the same curves give the same file.
        with rc_context({"svg.hashsalt": "metrix"}):
            figure.savefig(temporary, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)

    write_or_explain(path, write)
    return path
