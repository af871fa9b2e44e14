"""The critical-difference picture and intervals by dataset: what is drawn is what was given."""

from __future__ import annotations

import pytest

from metrix.evaluate.method_ranks import group_methods
from metrix.report.figures.method_ranks import draw_critical_difference, draw_recall_intervals
from metrix.report.page.drawing import COLOURS


def test_the_picture_has_each_method_at_its_rank_and_a_bar_for_each_group() -> None:
    means = {"c": 2.9, "a": 1.2, "d": 3.9, "b": 2.0}
    figure = draw_critical_difference(means, 1.0, group_methods(means, 1.0), 5)
    (axes,) = figure.drawing.axes
    stems = [line for line in axes.lines if len(line.get_xdata()) == 3]
    assert sorted(line.get_xdata()[0] for line in stems) == [1.2, 2.0, 2.9, 3.9]
    bars = [line for line in axes.lines if line.get_color() == COLOURS[0]]
    assert [tuple(bar.get_xdata()) for bar in bars] == [
        pytest.approx((1.2, 2.0), abs=0.03),
        pytest.approx((2.0, 2.9), abs=0.03),
    ]
    texts = [text.get_text() for text in axes.texts]
    assert "critical difference 1.00" in texts
    assert [text for text in texts if "  " in text] == ["a  1.20", "b  2.00", "c  2.90", "d  3.90"]
    assert figure.data[1:] == [["a", 1.2], ["b", 2.0], ["c", 2.9], ["d", 3.9]]
    assert figure.alt.startswith("mean ranks over 5 datasets: a 1.20, b 2.00")


def test_a_panel_for_each_dataset_has_the_intervals_and_the_untrained_network() -> None:
    panels = {"x": {"a": (70.0, 68.0, 72.0), "a+feature": (75.0, 73.0, 77.0)}, "y": {"a": (50.0, 45.0, 55.0)}}
    figure = draw_recall_intervals(panels, {"x": 40.0, "y": 30.0}, ["a", "a+feature"])
    first, second = figure.drawing.axes
    spans = [tuple(line.get_xdata()) for line in first.lines if len(line.get_xdata()) == 2]
    assert spans == [(68.0, 72.0), (73.0, 77.0), (40.0, 40.0)]
    assert [first.lines[0].get_color(), first.lines[2].get_color()] == [COLOURS[0], COLOURS[1]]  # mixed in another
    assert len(second.lines) == 3
    assert figure.data[1:] == [
        ["x", "a", 70.0, 68.0, 72.0],
        ["x", "a+feature", 75.0, 73.0, 77.0],
        ["y", "a", 50.0, 45.0, 55.0],
    ]
