"""Blocks as Markdown that GitHub, editors and terminals show; figures are files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from metrix.report.page.blocks import (
    Block,
    Cell,
    Figure,
    Gallery,
    Section,
    SideBySide,
    Table,
    Text,
    Tiles,
    Value,
    cell_text,
)
from metrix.report.page.escaping import in_markdown, split_paragraphs

Places = Mapping[int, str]  # id of a block -> its files without their ending


def render_markdown(title: str, about: str, sections: Sequence[Section], footer: str, places: Places) -> str:
    """The whole page; `places` says where the files of its figures and tables are."""
    lines = [f"# {in_markdown(title)}", *_paragraphs(about)]
    for section in sections:
        lines += [f"## {in_markdown(section.heading)}", *_blocks(section.blocks, places)]
    return "\n\n".join(line for line in (*lines, "---", *_paragraphs(footer)) if line) + "\n"


def _blocks(blocks: Sequence[Block], places: Places) -> list[str]:
    return [_WRITERS[type(block)](block, places) for block in blocks]


def _paragraphs(text: str) -> list[str]:
    return [in_markdown(part) for part in split_paragraphs(text)]


def _text(block: Text, _: Places) -> str:
    paragraphs = _paragraphs(block.text)
    if block.tone == "plain":
        return "\n\n".join(paragraphs)
    sign = "Note" if block.tone == "note" else "Not shown"
    return "\n>\n".join(f"> {line}" for line in (f"**{sign}:** {paragraphs[0]}", *paragraphs[1:]))


def _tiles(block: Tiles, _: Places) -> str:
    return "\n".join(
        f"- **{in_markdown(tile.label)}:** {in_markdown(tile.value)}"
        + (f" ({in_markdown(tile.detail)})" if tile.detail else "")
        for tile in block.tiles
    )


def _side(block: SideBySide, places: Places) -> str:
    return "\n\n".join(_blocks(block.blocks, places))


def _table(block: Table, places: Places) -> str:
    names = [" ".join(word for word in (column.group, column.name) if word) for column in block.columns]
    lines = [
        _line(map(in_markdown, names)),
        _line(":--" if c.text or n == 0 else "--:" for n, c in enumerate(block.columns)),
    ]
    best = block.best
    for n, row in enumerate(block.rows):
        if isinstance(row, str):
            lines.append(_line([f"**{in_markdown(row)}**", *[""] * (len(block.columns) - 1)]))
        else:
            lines.append(_line(_cell(cell, (n, c) in best) for c, cell in enumerate(row)))
    caption = [f"**{in_markdown(block.caption)}**"] if block.caption else []
    notes = [in_markdown(note) for note in block.footnotes]
    return "\n\n".join([*caption, "\n".join(lines), *notes, f"[data (CSV)]({quote(places[id(block)])}.csv)"])


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell, best: bool) -> str:
    if isinstance(cell, Value):
        number = f"**{cell.number}**" if best else cell.number
        return " ".join([number, *(in_markdown(part) for part in (cell.mark, cell.about, cell.below) if part)])
    return in_markdown(cell_text(cell)) if isinstance(cell, str) else cell_text(cell)


def _figure(block: Figure, places: Places) -> str:
    place = quote(places[id(block)])
    links = f"[SVG]({place}.svg), [PNG]({place}.png)" + (f", [data (CSV)]({place}.csv)" if block.data else "")
    caption = f"{in_markdown(block.caption)} ({links})" if block.caption else links
    return f"![{in_markdown(block.alt)}]({place}.png)\n\n{caption}"


def _gallery(block: Gallery, places: Places) -> str:
    place = quote(places[id(block)])
    count = sum(len(query.found) > 0 for query in block.queries)
    alt = f"{count} queries, each with the nearest images; ✓ is of the query's class, ✗ is not"
    return f"![{in_markdown(alt)}]({place}.png)\n\n{in_markdown(block.caption)} ([data (CSV)]({place}.csv))".strip()


_WRITERS: dict[type[Any], Callable[[Any, Places], str]] = {
    Text: _text,
    Tiles: _tiles,
    SideBySide: _side,
    Table: _table,
    Figure: _figure,
    Gallery: _gallery,
}
