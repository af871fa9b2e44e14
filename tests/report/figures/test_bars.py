"""Bars: a panel for each metric."""

from __future__ import annotations

from metrix.report.figures.bars import draw_bars


def test_bars_have_a_panel_and_a_number_each() -> None:
    figure = draw_bars(
        {"alignment": {"a": (0.41, None), "b": (0.38, 0.01)}, "uniformity": {"b": (-2.5, None)}}, name="g"
    )
    first, second = figure.drawing.axes
    assert [patch.get_width() for patch in first.patches] == [0.41, 0.38]
    assert [patch.get_width() for patch in second.patches] == [-2.5]
    assert [text.get_text() for text in first.texts] == ["0.410", "0.380"]
    assert figure.alt == "alignment: a 0.410, b 0.380; uniformity: b -2.500"
    assert figure.data[1:] == [
        ["alignment", "a", 0.41, None],
        ["alignment", "b", 0.38, 0.01],
        ["uniformity", "b", -2.5, None],
    ]
    assert draw_bars({}, name="none").alt == "no bars"
