"""A page with every kind of block, and text that tries to break out of it."""

from __future__ import annotations

from typing import Any

import numpy as np

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
        [Column(text), Column("R@1", "CUB"), Column("what", text=True)],
        [text, [text, Value(45.3, std=0.312), text], ["mixed", Value(46.0, interval=(44.0, 48.0), below=text), None]],
        caption=text,
        footnotes=[text],
        name=text,
        best={(2, 1)},
    )
    figure = Figure(a_drawing(shorten_for_figure(text)), f"alt {text}", text, text, [["x", text], [1.0, text]])
    blocks = [Text(text), Text(text, "note"), Text(text, "missing"), Tiles([Tile(text, text, text)])]
    sections = [Section(text, blocks), Section(text, [table, SideBySide([figure, figure]), a_gallery(text)])]
    return Page(text, sections, about=text, footer=text, **of_page)
