"""Curves: what is drawn, described in words, and given as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from metrix.report.figures.curves import Curve, draw_curves
from metrix.report.page.drawing import COLOURS, render_svg

NASTY = "_$x_1$ <b> 日本"


def test_curves_show_bands_and_a_papers_curve_in_the_colour_of_the_measured_one() -> None:
    measured = Curve.over_seeds(NASTY, [0.1, 0.4], [[60.0, 62.0], [61.0, 64.0]])
    paper = Curve("paper", [0.1, 0.4], [59.0, np.nan], reference=True, like=NASTY)
    figure = draw_curves([measured, Curve("other", [0.1, 0.4], [1, 2]), paper], "w", "Recall@1", name="strength")
    (axes,) = figure.drawing.axes
    assert [line.get_color() for line in axes.lines] == [COLOURS[0], COLOURS[1], COLOURS[0]]
    fourth = draw_curves([Curve("one", [0], [1], number=3)], "w", "Recall@1", name="one")
    assert fourth.drawing.axes[0].lines[0].get_color() == COLOURS[3]
    assert axes.lines[2].get_markerfacecolor() == "none"
    assert len(axes.collections) == 1  # one band
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((60.5 - np.sqrt(0.5), 63.0 + np.sqrt(2.0)))
    words = [text.get_text() for text in figure.drawing.legends[0].get_texts()]
    assert words[0].strip() == NASTY
    assert "from 60.5 to 63, highest 63 at 0.4" in figure.alt
    assert [row[0] for row in figure.data] == ["curve", NASTY, NASTY, "other", "other", "paper", "paper"]
    assert NASTY.replace("<", "&lt;").replace(">", "&gt;") in render_svg(figure.drawing)


def test_an_axis_of_percentages_ends_at_100_and_no_legend_covers_a_curve() -> None:
    steps = [0.0, 100.0, 200.0]
    given = [Curve(f"run {n}", steps, [20.0 + n, 99.0, 100.0]) for n in range(3)]
    figure = draw_curves(given, "step", "Recall@1, %", name="validation", bounds=(0, 100))
    (axes,) = figure.drawing.axes
    low, high = axes.get_ylim()
    assert high == 100
    assert 0 <= low < 20
    assert all(tick <= 100 for tick in axes.get_yticks() if low <= tick <= high)
    figure.drawing.draw_without_rendering()
    (legend,) = figure.drawing.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert axes.get_legend() is None
    free = draw_curves([Curve("loss", steps, [3.0, 2.0, 1.0])], "step", "loss", name="loss")
    assert free.drawing.axes[0].get_ylim()[1] > 3.0
