"""Pictures inside a page."""

from __future__ import annotations

import numpy as np

from metrix.report.page import (
    Gallery,
    Hit,
    Page,
    Picture,
    Query,
    Section,
)
from metrix.report.page.pictures import draw_gallery


def test_pictures_are_small_whatever_was_given() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2000, 3000, 3), dtype=np.uint8)
    one = Gallery([Query(Picture(noise, "q"), {"run": [Hit(Picture(noise, "h"), True, 1.0)]})])
    assert len(Page("p", [Section("s", [one])]).to_html()) < 60_000


def test_two_searchers_are_drawn_side_by_side_and_more_below_each_other() -> None:
    pixels = np.zeros((8, 8), np.uint8)

    def drawn(*names: str) -> tuple[float, list[str], int]:
        hits = [Hit(Picture(pixels, "h"), right, 0.5) for right in (True, False, None)]
        figure = draw_gallery(Gallery([Query(Picture(pixels, "q"), dict.fromkeys(names, hits)) for _ in range(2)]))
        (axes,) = figure.axes
        return figure.get_figheight(), [text.get_text() for text in axes.texts], len(axes.images)

    one, two, three = drawn("a"), drawn("a", "b"), drawn("a", "b", "c")
    assert two[0] < three[0] / 2
    assert [one[2], two[2], three[2]] == [2 * 4, 2 * 7, 2 * 10]
    assert two[1].count("a") == two[1].count("b") == 1  # a heading above each
    assert two[1].count("✓ h") == two[1].count("✗ h") == 4
