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


def test_pictures_are_small_whatever_was_given() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2000, 3000, 3), dtype=np.uint8)
    one = Gallery([Query(Picture(noise, "q"), {"run": [Hit(Picture(noise, "h"), True, 1.0)]})])
    assert len(Page("p", [Section("s", [one])]).to_html()) < 60_000
