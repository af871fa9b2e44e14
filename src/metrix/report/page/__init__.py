"""Pages of results: one self-contained HTML file, the same in Markdown, and every figure and table as a file.

    page = Page("Two runs", [Section("Measures", [Text("On unseen classes."), Table(...), Figure(...)])])
    page.write(Path("report.html"))   # report.html, report.md and report-files/

Blocks are plain values. Any text in them is shown literally; markup in it has no effect.
"""

from __future__ import annotations

from metrix.report.page.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Gallery,
    Hit,
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
from metrix.report.page.writing import Page

__all__ = [
    "Block",
    "Cell",
    "Column",
    "Figure",
    "Gallery",
    "Hit",
    "Page",
    "Picture",
    "Query",
    "Section",
    "SideBySide",
    "Table",
    "Text",
    "Tile",
    "Tiles",
    "Value",
]
