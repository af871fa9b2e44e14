"""Bars of several metrics, with a panel and a scale for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metrix.report.page import Figure
from metrix.report.page.drawing import COLOURS, figure_style, new_figure
from metrix.report.page.escaping import shorten_for_figure

HATCHES = ("", "//", "..", "\\\\", "xx", "--", "oo")


def draw_bars(
    panels: Mapping[str, Mapping[str, tuple[float, float | None]]],
    *,
    name: str,
    caption: str = "",
    order: Sequence[str] = (),
    digits: int = 3,
) -> Figure:
    """Draw a panel of horizontal bars for each metric, with the number at the end of each bar.

    Args:
        panels: (value, error or None) by metric and by name.
        name: of the figure's files.
        caption: below the figure.
        order: names in the order of their colours, so that a run has one colour in all figures of a page.
        digits: after the decimal point.
    """
    who = list(dict.fromkeys(one for panel in panels.values() for one in panel))
    with figure_style():
        drawing = new_figure(5.2, max(len(panels), 1) * (0.27 * len(who) + 0.62))
        rows = drawing.subplots(max(len(panels), 1), 1, squeeze=False)[:, 0]
        for axes, (measure, values) in zip(rows, panels.items(), strict=False):
            for y, one in enumerate(who):
                if one in values:
                    _bar(axes, y, order.index(one) if one in order else y, *values[one], digits)
            axes.set(title=shorten_for_figure(measure), ylim=(len(who) - 0.45, -0.55), yticks=range(len(who)))
            axes.set_yticklabels([shorten_for_figure(one, 24) for one in who])
            axes.grid(axis="y", visible=False)
            axes.tick_params(axis="y", length=0)
            axes.margins(x=0.2)
            axes.locator_params(axis="x", nbins=6)
    said = [
        f"{measure}: " + ", ".join(f"{one} {value:.{digits}f}" for one, (value, _) in values.items())
        for measure, values in panels.items()
    ]
    data: list[list[object]] = [["measure", "name", "value", "error"]]
    data += [[m, one, float(v), error] for m, values in panels.items() for one, (v, error) in values.items()]
    return Figure(drawing, "; ".join(said) or "no bars", caption, name, data)


def _bar(axes: Any, y: int, number: int, value: float, error: float | None, digits: int) -> None:
    colour, hatch = COLOURS[number % len(COLOURS)], HATCHES[number % len(HATCHES)]
    axes.barh(y, value, height=0.62, color=colour, alpha=0.9, hatch=hatch, edgecolor=colour, linewidth=0)
    if error:
        axes.errorbar(value, y, xerr=error, color=colour, capsize=3, linewidth=1)
    side = 1 if value >= 0 else -1
    axes.annotate(
        f"{value:.{digits}f}",
        (value + side * (error or 0.0), y),
        xytext=(4 * side, 0),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="center",
        fontsize=8,
    )
