"""Curves against λ, w or steps, with a band over seeds, and the paper's curve beside the measured one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.report.page import Figure
from metrix.report.page.blocks import Rows
from metrix.report.page.drawing import COLOURS, DASHES, MARKERS, figure_style, new_figure
from metrix.report.page.escaping import shorten_for_figure

MARKED_AT_MOST = 60  # points; longer curves are drawn without markers


@dataclass(frozen=True, eq=False)
class Curve:
    """y against x; NaN leaves a gap."""

    name: str
    x: Sequence[float] | NDArray[Any]
    y: Sequence[float] | NDArray[Any]
    spread: Sequence[float] | NDArray[Any] | None = None  # half-width of a band around y
    reference: bool = False  # such as the paper's curve: dashed, with open markers
    like: str | None = None  # the name of the curve whose colour it shares
    part: bool = False  # a part of another curve: dotted, without markers
    number: int | None = None  # index of its colour; by default, its position in the plot

    @classmethod
    def over_seeds(cls, name: str, x: Sequence[float], runs: Sequence[Sequence[float]]) -> Curve:
        """The mean of several runs (runs, points), with a band of one standard deviation if there are two or more.

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
    bounds: tuple[float, float] | None = None,
) -> Figure:
    """Draw curves into one plot; the legend of several is below it, over no curve.

    Args:
        given: the curves.
        x_label: what is on the horizontal axis.
        y_label: what is on the vertical axis.
        name: of the figure's files.
        caption: below the figure.
        title: above the axes.
        size: of the axes with their labels, in inches; a legend adds to it.
        bounds: the least and the largest possible y, such as (0, 100) for per cent; the axis ends there at the latest.
    """
    columns = 2 if max((len(curve.name) for curve in given), default=0) <= 32 else 1
    lines = -(-len(given) // columns) if len(given) > 1 else 0
    with figure_style():
        drawing = new_figure(size[0], size[1] + 0.2 * lines)
        axes = drawing.add_subplot()
        order = [curve.name for curve in given if curve.like is None]
        for curve in given:
            n = order.index(curve.like or curve.name) if curve.number is None else curve.number
            colour, x, y = COLOURS[n % len(COLOURS)], np.asarray(curve.x, float), np.asarray(curve.y, float)
            style: dict[str, Any] = {
                "color": colour,
                "label": shorten_for_figure(curve.name, 60),
                "linestyle": DASHES[0],
            }
            if len(x) <= MARKED_AT_MOST:
                style["marker"] = MARKERS[n % len(MARKERS)]
            else:
                style["linestyle"] = DASHES[n % len(DASHES) if len(given) > 1 else 0]
            if curve.reference:
                style |= {"linestyle": (0, (4, 2)), "markerfacecolor": "none", "linewidth": 1.3}
            if curve.part:
                style |= {"linestyle": ":", "marker": ""}
            axes.plot(x, y, clip_on=bounds is None, **style)  # a marker at a bound is drawn whole
            if curve.spread is not None:
                spread = np.asarray(curve.spread, float)
                axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.18, linewidth=0)
        axes.set(xlabel=x_label, ylabel=y_label, title=shorten_for_figure(title, 60))
        if bounds is not None:
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, bounds[0]), min(high, bounds[1]))
        if len(given) > 1:
            drawing.legend(loc="outside lower center", ncols=columns)
    return Figure(drawing, _describe(given, x_label, y_label), caption, name, _list_points(given, x_label, y_label))


def _describe(given: Sequence[Curve], x_label: str, y_label: str) -> str:
    """The curves in words: where each begins, ends and is highest."""
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


def _list_points(given: Sequence[Curve], x_label: str, y_label: str) -> Rows:
    rows: list[list[object]] = [["curve", x_label, y_label, "spread"]]
    for curve in given:
        spread = [None] * len(curve.x) if curve.spread is None else [float(value) for value in curve.spread]
        for x, y, around in zip(curve.x, curve.y, spread, strict=True):
            rows.append([curve.name, float(x), float(y), around])
    return rows
