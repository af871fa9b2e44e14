"""Pages as HTML: structure, escaping, nothing fetched."""

from __future__ import annotations

import pytest

from metrix.report.page import (
    Figure,
    Page,
    Section,
)
from tests.report.markup import checked
from tests.report.page.pages import NASTY, a_drawing, a_page


def test_a_page_is_well_formed_self_contained_and_said_in_words() -> None:
    page = checked(a_page().to_html())
    assert [attributes["href"] for attributes in page.all("a")[:2]] == ["#words", "#words-2"]
    assert {attributes.get("alt") for attributes in page.all("img")} >= {
        "query: words",
        "1: words, right, similarity 0.90",
        "2: words, wrong, similarity 0.50",
    }
    assert "✓" in page.text
    assert "✗" in page.text


def test_text_from_anywhere_is_shown_as_it_is_and_never_markup() -> None:
    written = a_page(NASTY).to_html()
    page = checked(written)
    assert "<script" not in written
    shown = NASTY.replace("\x00", "�").replace("\udcff", "�")
    for tag in ("h1", "title", "caption", "th", "td", "dt", "figcaption", "p"):
        assert any(where == tag and words.startswith(shown) for where, words in page.words), tag
    assert page.all("img")[0]["alt"] == f"query: {shown}"


def test_a_large_drawing_is_a_png(monkeypatch: pytest.MonkeyPatch) -> None:
    from metrix.report.page import html

    monkeypatch.setattr(html, "LARGEST_SVG", 1000)
    page = checked(Page("p", [Section("s", [Figure(a_drawing(), "a curve")])]).to_html())
    assert page.all("svg") == []
    assert page.all("img")[0]["alt"] == "a curve"
