"""The page builder: structure, escaping, figures for light and dark, files."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from metrix.errors import InvalidInput
from metrix.report.page import (
    Column,
    Figure,
    Gallery,
    Hit,
    Page,
    Picture,
    Query,
    Section,
    SideBySide,
    Table,
    Text,
    Tile,
    Tiles,
    Value,
)
from metrix.report.page import drawing as drawings
from metrix.report.page.escaping import shorten_for_figure
from tests.report.markup import checked

NASTY = """_</td><script>alert("1")</script> & $x^2$ | [a](http://b.c) `c` *d* 日本 \x00\udcff '"""


def a_drawing(label: str = "a", points: int = 5) -> Any:
    with drawings.figure_style():
        figure = drawings.new_figure()
        axes = figure.add_subplot()
        axes.plot(np.linspace(0, 1, points), np.linspace(0, 1, points) ** 2, label=label)
        axes.legend()
    return figure


def a_gallery(label: str = "a bird") -> Gallery:
    grey = Picture(np.arange(100, dtype=np.uint8).reshape(10, 10), label)
    colour = Picture(np.full((400, 300, 3), 200, np.uint8), label)
    hits = [Hit(colour, True, 0.9), Hit(grey, False, 0.5)]
    return Gallery([Query(grey, {"run a": hits, label: hits[::-1]})], f"what {label} finds")


def a_page(text: str = "words", **of_page: Any) -> Page:
    table = Table(
        [Column(text), Column("R@1", "CUB", best="max"), Column("what", text=True)],
        [text, [text, Value(45.3, std=0.312), text], ["mixed", Value(46.0, interval=(44.0, 48.0), below=text), None]],
        caption=text,
        footnotes=[text],
        name=text,
    )
    figure = Figure(a_drawing(shorten_for_figure(text)), f"alt {text}", text, text, [["x", text], [1.0, text]])
    blocks = [Text(text), Text(text, "note"), Text(text, "missing"), Tiles([Tile(text, text, text)])]
    sections = [Section(text, blocks), Section(text, [table, SideBySide([figure, figure]), a_gallery(text)])]
    return Page(text, sections, about=text, footer=text, **of_page)


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


def test_markdown_keeps_nasty_text_within_its_cell() -> None:
    text = a_page(NASTY).to_markdown("some files")
    assert "<script" not in text
    assert "http://" not in text
    assert "](http" not in text.replace("\\]", "")
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    columns = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    assert columns == {4}, lines
    assert "(some%20files/" in text


def test_the_best_of_a_column_is_told_without_colour() -> None:
    columns = [Column("run"), Column("recall", best="max"), Column("loss", best="min")]
    rows = [["a", Value(1.0), Value(3.0)], ["b", Value(2.0), Value(4.0)], ["c", Value(1.9999), Value(float("nan"))]]
    table = Table(columns, rows)
    assert table.best == {(1, 1), (2, 1), (0, 2)}  # 1.9999 is shown as 2.00: a tie
    assert "2.00 (best)" in " ".join(checked(Page("p", [Section("s", [table])]).to_html()).text.split())
    assert "| b | **2.00** | 4.00 |" in Page("p", [Section("s", [table])]).to_markdown("f")
    grouped = Table(columns[:2], ["x", rows[0][:2], "y", rows[1][:2], rows[2][:2]])
    assert grouped.best == {(3, 1), (4, 1)}  # one alone is not the best of anything
    whole = Table(columns[:2], ["x", rows[0][:2], "y", rows[1][:2]], best_within="table")
    assert whole.best == {(3, 1)}


def test_a_row_of_another_length_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        Table([Column("a"), Column("b")], [["a"]])


def test_tables_as_csv_hold_the_numbers_in_full() -> None:
    columns = [Column("run"), Column("R@1", "CUB")]
    rows = ["group", ["a, b", Value(0.123456789, std=0.01)], ["c", Value(1.0, interval=(0.5, 2.0))]]
    files = Page("p", [Section("s", [Table(columns, rows, name="My table")])]).to_files()
    found = list(csv.reader(io.StringIO(files["my-table.csv"].decode())))
    assert found == [
        ["group", "run", "CUB R@1", "CUB R@1 std", "CUB R@1 low", "CUB R@1 high"],
        ["group", "a, b", "0.123456789", "0.01", "", ""],
        ["group", "c", "1.0", "", "0.5", "2.0"],
    ]


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


def test_a_large_drawing_is_a_png(monkeypatch: pytest.MonkeyPatch) -> None:
    from metrix.report.page import html

    monkeypatch.setattr(html, "LARGEST_SVG", 1000)
    page = checked(Page("p", [Section("s", [Figure(a_drawing(), "a curve")])]).to_html())
    assert page.all("svg") == []
    assert page.all("img")[0]["alt"] == "a curve"


def test_pictures_are_small_whatever_was_given() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2000, 3000, 3), dtype=np.uint8)
    one = Gallery([Query(Picture(noise, "q"), {"run": [Hit(Picture(noise, "h"), True, 1.0)]})])
    assert len(Page("p", [Section("s", [one])]).to_html()) < 60_000


def test_all_files_are_written_whole_and_named(tmp_path: Path) -> None:
    written = a_page("words").write(tmp_path / "new" / "report.html")
    folder = tmp_path / "new" / "report-files"
    assert written == [tmp_path / "new" / "report.html", tmp_path / "new" / "report.md", folder]
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["gallery.csv", "gallery.png", *(f"words-2.{kind}" for kind in ("csv", "png", "svg")), "words.csv"]
    text = (tmp_path / "new" / "report.md").read_text("utf-8")
    for address in re.findall(r"\]\(([^)]+)\)", text):
        assert (tmp_path / "new" / address).is_file(), address
    elsewhere = tmp_path / "figures"
    a_page().write(tmp_path / "other.html", elsewhere)
    assert (elsewhere / "gallery.png").is_file()
    assert "(figures/gallery.png)" in (tmp_path / "other.md").read_text("utf-8")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"ends in \.html"):
        a_page().write(tmp_path / "report.txt")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot be created"):
        a_page().write(tmp_path / "file" / "report.html")
