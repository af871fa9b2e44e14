"""Blocks as Markdown that GitHub, editors and terminals show; figures are files beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from metrix.report.page.blocks import Block, Cell, Figure, Gallery, Side, Table, Text, Tiles, Value
from metrix.report.page.escaping import clean, in_markdown

Places = Mapping[int, str]  # id of a block -> its files without their ending


def document(title: str, about: str, parts: Sequence[tuple[str, Sequence[Block]]], footer: str, places: Places) -> str:
    """The whole page; `parts` are (heading, blocks)."""
    lines = [f"# {in_markdown(title)}", *_paragraphs(about)]
    for heading, blocks in parts:
        lines += [f"## {in_markdown(heading)}", *_blocks(blocks, places)]
    return "\n\n".join(line for line in (*lines, "---", *_paragraphs(footer)) if line) + "\n"


def _blocks(blocks: Sequence[Block], places: Places) -> list[str]:
    return [_WRITERS[type(block)](block, places) for block in blocks]


def _paragraphs(text: str) -> list[str]:
    return [in_markdown(part) for part in clean(text).split("\n\n") if part.strip()]


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


def _side(block: Side, places: Places) -> str:
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
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "–" if cell is None else f"{cell:,}" if isinstance(cell, int) else in_markdown(cell)


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
    Side: _side,
    Table: _table,
    Figure: _figure,
    Gallery: _gallery,
}
