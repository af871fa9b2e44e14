"""Pages in Chromium, at the widths of screens: nothing is cut off, and pictures use the width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from metrix.report.page import Column, Gallery, Hit, Page, Picture, Query, Section, Table, Value
from tests.explore.browser import launch

WIDTHS = (1200, 1600, 1920)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch() as found:
        yield found


def show(browser: Any, page: Page, width: int, folder: Path) -> Any:
    (folder / "page.html").write_text(page.to_html(), encoding="utf-8")
    shown = browser.new_page(viewport={"width": width, "height": 1000})
    shown.goto((folder / "page.html").as_uri())
    return shown


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_all_metrics_is_not_cut_off(browser: Any, tmp_path: Path, width: int) -> None:
    names = ["classes", "queries", "gallery", *(f"Recall@{k}" for k in (1, 2, 4, 8, 16, 100)), "MAP@R", "R-precision"]
    values = [60, 732, 732, *(Value(99.18, interval=(97.53, 100.0)) for _ in names[3:])]
    table = Table([Column("run"), *map(Column, names)], [[f"{letter} embed", *values] for letter in "ABCD"], "Metrics")
    page = show(browser, Page("Report", [Section("Metrics", [table])]), width, tmp_path)
    inside, needed = page.evaluate("() => { const e = document.querySelector('.scroll');"
                                   " return [e.clientWidth, e.scrollWidth] }")  # fmt: skip
    assert needed <= inside
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_neighbours_use_the_width_of_the_page(browser: Any, tmp_path: Path, width: int) -> None:
    picture = Picture(np.zeros((60, 80, 3), dtype=np.uint8), "label")
    query = Query(picture, {"a.jpg: 60 % says b": [Hit(picture, False, 0.9 - n / 100) for n in range(10)]})
    page = show(browser, Page("Suspects", [Section("1 image", [Gallery([query], "", "suspects")])]), width, tmp_path)
    places = page.eval_on_selector_all(".strip li", "all => all.map(e => e.getBoundingClientRect().toJSON())")
    rows = len({place["top"] for place in places})
    assert rows == (2 if width == 1200 else 1)
    assert max(place["right"] for place in places) > 0.7 * width
    assert "similarity 0.900" in page.inner_text(".strip li")
