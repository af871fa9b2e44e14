"""Figures for light and dark, the same each time."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from metrix.report.page import drawing as drawings
from metrix.report.page.escaping import shorten_for_figure
from tests.report.page.pages import NASTY, a_drawing


def test_figures_take_their_ink_from_the_page_and_are_the_same_each_time() -> None:
    first, second = (drawings.render_svg(a_drawing()) for _ in range(2))
    assert first == second
    assert "currentColor" in first
    assert "var(--grid" in first
    assert drawings.INK not in first.replace(f"var(--grid,{drawings.GRID})", "")
    assert "<metadata" not in first
    assert ">a</text>" in first  # text stays text
    alone = drawings.make_standalone(drawings.render_svg(a_drawing()))
    assert "prefers-color-scheme:dark" in alone
    assert alone.startswith("<?xml")
    assert drawings.render_png(a_drawing()) == drawings.render_png(a_drawing())
    pixels = np.asarray(Image.open(io.BytesIO(drawings.render_png(a_drawing()))).convert("RGB"))
    assert (pixels[0, 0] == 255).all()


def test_making_figures_leaves_matplotlib_as_it_was() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    drawings.render_svg(a_drawing(shorten_for_figure(NASTY)))
    assert dict(matplotlib.rcParams) == before
