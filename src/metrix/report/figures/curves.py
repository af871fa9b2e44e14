"""Curves against a number: λ, w, steps; with a band over seeds, and a paper's curve beside the measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.report.page import Figure
from metrix.report.page.blocks import Rows
from metrix.report.page.drawing import COLOURS, DASHES, MARKERS, look, new_figure
from metrix.report.page.escaping import in_figure

MARKED_AT_MOST = 60  # points with a marker each; longer curves are lines


@dataclass(frozen=True, eq=False)
class Curve:
    """y against x, with a half-width of its band where there is one; NaN leaves a gap.

    A `reference`, as a paper's curve, is dashed with open markers; `like` names the curve whose colour it shares.
    `part` of another curve is dotted, without markers. `number` is its place among the colours; by default that in
    the plot.
    """

    name: str
    x: Sequence[float] | NDArray[Any]
    y: Sequence[float] | NDArray[Any]
    spread: Sequence[float] | NDArray[Any] | None = None
    reference: bool = False
    like: str | None = None
    part: bool = False
    number: int | None = None

    @classmethod
    def over_seeds(cls, name: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Curve:
        """Mean and standard deviation of several runs (runs, points); one run has no band.

        >>> curve = Curve.over_seeds("embed", [0, 1], [[1.0, 2.0], [3.0, 2.0]])
        >>> curve.y.tolist(), curve.spread.round(3).tolist()
        ([2.0, 2.0], [1.414, 0.0])
        """
        values = np.asarray(runs, dtype=np.float64)
        return cls(name, x, values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None)


def draw_curves(
    given: Sequence[Curve],
    x_label: str,
    y_label: str,
    *,
    name: str,
    caption: str = "",
    title: str = "",
    size: tuple[float, float] = (5.2, 3.4),
) -> Figure:
    """Curves in one plot."""
    with look():
        drawing = new_figure(*size)
        axes = drawing.add_subplot()
        order = [curve.name for curve in given if curve.like is None]
        for curve in given:
            n = order.index(curve.like or curve.name) if curve.number is None else curve.number
            colour, x, y = COLOURS[n % len(COLOURS)], np.asarray(curve.x, float), np.asarray(curve.y, float)
            style: dict[str, Any] = {"color": colour, "label": in_figure(curve.name, 60), "linestyle": DASHES[0]}
            if len(x) <= MARKED_AT_MOST:
                style["marker"] = MARKERS[n % len(MARKERS)]
            else:
                style["linestyle"] = DASHES[n % len(DASHES)]
            if curve.reference:
                style |= {"linestyle": (0, (4, 2)), "markerfacecolor": "none", "linewidth": 1.3}
            if curve.part:
                style |= {"linestyle": ":", "marker": ""}
            axes.plot(x, y, **style)
            if curve.spread is not None:
                spread = np.asarray(curve.spread, float)
                axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.18, linewidth=0)
        axes.set(xlabel=x_label, ylabel=y_label, title=in_figure(title, 60))
        if len(given) > 1:
            axes.legend()
    return Figure(drawing, _said(given, x_label, y_label), caption, name, _data(given, x_label, y_label))


def _said(given: Sequence[Curve], x_label: str, y_label: str) -> str:
    """What a curve does, in words: where it begins, ends, and is highest."""
    parts = []
    for curve in given:
        x, y = np.asarray(curve.x, float), np.asarray(curve.y, float)
        known = ~np.isnan(y)
        if not known.any():
            continue
        x, y = x[known], y[known]
        top = int(y.argmax())
        parts.append(f"{curve.name} from {y[0]:.3g} to {y[-1]:.3g}, highest {y[top]:.3g} at {x[top]:.4g}")
    return f"{y_label} against {x_label}: {'; '.join(parts) or 'no points'}"


def _data(given: Sequence[Curve], x_label: str, y_label: str) -> Rows:
    rows: list[list[object]] = [["curve", x_label, y_label, "spread"]]
    for curve in given:
        spread = [None] * len(curve.x) if curve.spread is None else [float(value) for value in curve.spread]
        for x, y, around in zip(curve.x, curve.y, spread, strict=True):
            rows.append([curve.name, float(x), float(y), around])
    return rows
