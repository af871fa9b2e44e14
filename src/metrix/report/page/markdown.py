"""A page as Markdown for GitHub, editors and terminals; figures and tables are files beside it."""

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
from metrix.report.page.escaping import escape_markdown, split_paragraphs

Places = Mapping[int, str]  # id of a block -> path of its files without the suffix


def render_markdown(title: str, about: str, sections: Sequence[Section], footer: str, places: Places) -> str:
    """The whole page; `places` says where the files of its figures and tables are."""
    lines = [f"# {escape_markdown(title)}", *_paragraphs(about)]
    for section in sections:
        lines += [f"## {escape_markdown(section.heading)}", *_write_blocks(section.blocks, places)]
    return "\n\n".join(line for line in (*lines, "---", *_paragraphs(footer)) if line) + "\n"


def _write_blocks(blocks: Sequence[Block], places: Places) -> list[str]:
    return [_WRITERS[type(block)](block, places) for block in blocks]


def _paragraphs(text: str) -> list[str]:
    return [escape_markdown(part) for part in split_paragraphs(text)]


def _write_text(block: Text, _: Places) -> str:
    paragraphs = _paragraphs(block.text)
    if block.tone == "plain":
        return "\n\n".join(paragraphs)
    sign = "Note" if block.tone == "note" else "Not shown"
    return "\n>\n".join(f"> {line}" for line in (f"**{sign}:** {paragraphs[0]}", *paragraphs[1:]))


def _write_tiles(block: Tiles, _: Places) -> str:
    return "\n".join(
        f"- **{escape_markdown(tile.label)}:** {escape_markdown(tile.value)}"
        + (f" ({escape_markdown(tile.detail)})" if tile.detail else "")
        for tile in block.tiles
    )


def _write_side(block: SideBySide, places: Places) -> str:
    return "\n\n".join(_write_blocks(block.blocks, places))


def _write_table(block: Table, places: Places) -> str:
    names = [" ".join(word for word in (column.group, column.name) if word) for column in block.columns]
    lines = [
        _join_cells(map(escape_markdown, names)),
        _join_cells(":--" if c.text or n == 0 else "--:" for n, c in enumerate(block.columns)),
    ]
    best = block.best
    for n, row in enumerate(block.rows):
        if isinstance(row, str):
            lines.append(_join_cells([f"**{escape_markdown(row)}**", *[""] * (len(block.columns) - 1)]))
        else:
            lines.append(_join_cells(_write_cell(cell, (n, c) in best) for c, cell in enumerate(row)))
    caption = [f"**{escape_markdown(block.caption)}**"] if block.caption else []
    notes = [escape_markdown(note) for note in block.footnotes]
    return "\n\n".join([*caption, "\n".join(lines), *notes, f"[data (CSV)]({quote(places[id(block)])}.csv)"])


def _join_cells(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _write_cell(cell: Cell, best: bool) -> str:
    if isinstance(cell, Value):
        number = f"**{cell.number}**" if best else cell.number
        return " ".join([number, *(escape_markdown(part) for part in (cell.mark, cell.about, cell.below) if part)])
    return escape_markdown(cell_text(cell)) if isinstance(cell, str) else cell_text(cell)


def _write_figure(block: Figure, places: Places) -> str:
    place = quote(places[id(block)])
    links = f"[SVG]({place}.svg), [PNG]({place}.png)" + (f", [data (CSV)]({place}.csv)" if block.data else "")
    caption = f"{escape_markdown(block.caption)} ({links})" if block.caption else links
    return f"![{escape_markdown(block.alt)}]({place}.png)\n\n{caption}"


def _write_gallery(block: Gallery, places: Places) -> str:
    place = quote(places[id(block)])
    count = sum(len(query.found) > 0 for query in block.queries)
    alt = f"{count} queries with their nearest images; ✓ marks the query's class, ✗ another"
    caption = f"{escape_markdown(block.caption)} ([data (CSV)]({place}.csv))".strip()
    return f"![{escape_markdown(alt)}]({place}.png)\n\n{caption}"


_WRITERS: dict[type[Any], Callable[[Any, Places], str]] = {
    Text: _write_text,
    Tiles: _write_tiles,
    SideBySide: _write_side,
    Table: _write_table,
    Figure: _write_figure,
    Gallery: _write_gallery,
}
