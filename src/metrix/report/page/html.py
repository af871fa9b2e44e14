"""Blocks as HTML: one file, nothing fetched, readable by people and by screen readers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from metrix.report.page.blocks import (
    Block,
    Cell,
    Column,
    Figure,
    Gallery,
    Hit,
    Picture,
    Query,
    Rows,
    Side,
    Table,
    Text,
    Tiles,
    Value,
)
from metrix.report.page.drawing import png, with_prefix
from metrix.report.page.escaping import clean, in_html
from metrix.report.page.pictures import data_address, has_few_pixels
from metrix.report.page.separated import separated

LARGEST_SVG = 600_000  # characters; a drawing of more is shown as PNG


def document(title: str, about: str, parts: Sequence[tuple[str, str, Sequence[Block]]], footer: str) -> str:
    """The whole page; `parts` are (anchor, heading, blocks)."""
    contents = "".join(f'<li><a href="#{anchor}">{in_html(heading)}</a></li>' for anchor, heading, _ in parts)
    body = "\n".join(
        f'<section id="{anchor}" aria-labelledby="{anchor}-title"><h2 id="{anchor}-title">{in_html(heading)}</h2>\n'
        + "\n".join(_blocks(blocks, anchor))
        + "</section>"
        for anchor, heading, blocks in parts
    )
    style = (Path(__file__).with_name("style.css")).read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{in_html(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"<header><h1>{in_html(title)}</h1>{_paragraphs(about)}</header>\n"
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav>\n'
        f"<main>\n{body}\n</main>\n<footer>{_paragraphs(footer)}</footer>\n</body>\n</html>\n"
    )


def _blocks(blocks: Sequence[Block], prefix: str) -> Iterator[str]:
    for n, block in enumerate(blocks):
        yield _WRITERS[type(block)](block, f"{prefix}-{n}")


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{in_html(part)}</p>" for part in clean(text).split("\n\n") if part.strip())


def _text(block: Text, _: str) -> str:
    if block.tone == "plain":
        return _paragraphs(block.text)
    sign = "Note" if block.tone == "note" else "Not shown"
    return f'<aside class="{block.tone}"><strong>{sign}</strong>{_paragraphs(block.text)}</aside>'


def _tiles(block: Tiles, _: str) -> str:
    tiles = "".join(
        f"<div><dt>{in_html(tile.label)}</dt><dd>{in_html(tile.value)}"
        + (f"<small>{in_html(tile.detail)}</small>" if tile.detail else "")
        + "</dd></div>"
        for tile in block.tiles
    )
    return f'<dl class="tiles">{tiles}</dl>'


def _side(block: Side, prefix: str) -> str:
    parts = "".join(f"<div>{part}</div>" for part in _blocks(block.blocks, prefix))
    return f'<div class="side">{parts}</div>'


def _table(block: Table, prefix: str) -> str:
    best = block.best
    lines = []
    for n, row in enumerate(block.rows):
        if isinstance(row, str):
            lines.append(
                f'<tr class="heading"><th scope="rowgroup" colspan="{len(block.columns)}">{in_html(row)}</th></tr>'
            )
            continue
        cells = "".join(
            _cell(cell, block.columns[c], (n, c) in best, 'th scope="row"' if c == 0 else "td")
            for c, cell in enumerate(row)
        )
        lines.append(f"<tr>{cells}</tr>")
    caption = f"<caption>{in_html(block.caption)}</caption>" if block.caption else ""
    notes = "".join(f"<p>{in_html(note)}</p>" for note in block.footnotes)
    label = in_html(block.caption or "table")
    return (
        f'<div class="table"><div class="scroll" role="region" tabindex="0" aria-label="{label}">'
        f"<table>{caption}<thead>{_header(block.columns)}</thead><tbody>{''.join(lines)}</tbody></table></div>"
        f'<div class="under">{notes}{_download(block.data, block.name, block.caption or block.name)}</div></div>'
    )


def _header(columns: Sequence[Column]) -> str:
    names = "".join(f'<th scope="col"{_side_of(column)}>{in_html(column.name)}</th>' for column in columns)
    if not any(column.group for column in columns):
        return f"<tr>{names}</tr>"
    groups = ""
    for group, members in groupby(columns, key=lambda column: column.group):
        count = len(list(members))
        groups += f'<th scope="colgroup" colspan="{count}">{in_html(group)}</th>' if group else "<td></td>" * count
    return f'<tr class="groups">{groups}</tr><tr>{names}</tr>'


def _side_of(column: Column) -> str:
    return ' class="text"' if column.text else ""


def _cell(cell: Cell, column: Column, best: bool, tag: str) -> str:
    if isinstance(cell, Value):
        number = f"{cell.number}{f'<sup>{in_html(cell.mark)}</sup>' if cell.mark else ''}"
        if best:
            number = f'<strong class="best">{number}<span class="unseen"> (best)</span></strong>'
        inner = number + (f" <small>{in_html(cell.about)}</small>" if cell.std is not None else "")
        below = [cell.about.strip("()")] if cell.interval is not None and cell.std is None else []
        inner += "".join(f'<small class="below">{in_html(line)}</small>' for line in (*below, cell.below) if line)
    elif isinstance(cell, int) and not isinstance(cell, bool):
        inner = f"{cell:,}"
    else:
        inner = "–" if cell is None else in_html(f"{cell:.4g}" if isinstance(cell, float) else cell)
    return f"<{tag}{_side_of(column)}>{inner}</{tag.split()[0]}>"


def _figure(block: Figure, prefix: str) -> str:
    drawn, alt = with_prefix(block.svg, f"{prefix}-"), in_html(block.alt)
    if len(drawn) <= LARGEST_SVG:
        image = drawn.replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)
    else:
        address = base64.b64encode(png(block.drawing)).decode()
        width, height = (round(96 * inches) for inches in block.drawing.get_size_inches())
        image = (
            f'<img class="opaque" src="data:image/png;base64,{address}" alt="{alt}" width="{width}" height="{height}">'
        )
    download = _download(block.data, block.name, block.alt) if block.data else ""
    caption = f"<figcaption>{in_html(block.caption)}{download}</figcaption>" if block.caption or download else ""
    return f'<figure><div class="drawing">{image}</div>{caption}</figure>'


def _download(rows: Rows, name: str, what: str) -> str:
    address = base64.b64encode(separated(rows).encode()).decode()
    return (
        f' <a class="data" download="{in_html(name)}.csv" href="data:text/csv;base64,{address}" '
        f'aria-label="Data as CSV: {in_html(what)}">data&nbsp;(CSV)</a>'
    )


def _gallery(block: Gallery, _: str) -> str:
    address = lru_cache(maxsize=None)(data_address)
    queries = "".join(_query(query, address) for query in block.queries)
    caption = f"<figcaption>{in_html(block.caption)}{_download(block.data, block.name, block.name)}</figcaption>"
    return f'<figure class="gallery">{caption}{queries}</figure>'


def _query(query: Query, address: Callable[[Picture], str]) -> str:
    strips = ""
    for name, hits in query.found.items():
        pictures = "".join(_hit(hit, rank, address) for rank, hit in enumerate(hits, 1))
        right = sum(hit.right for hit in hits)
        strips += (
            f'<div class="strip"><p>{in_html(name)} <span>{right} of {len(hits)} right</span></p>'
            f"<ol>{pictures}</ol></div>"
        )
    label = in_html(query.picture.label)
    return (
        f'<div class="query"><div class="asked">{_image(query.picture, f"query: {query.picture.label}", address)}'
        f'<p title="{label}">{_breakable(label)}</p></div><div class="strips">{strips}</div></div>'
    )


def _hit(hit: Hit, rank: int, address: Callable[[Picture], str]) -> str:
    kind, sign, said = ("right", "✓", "right") if hit.right else ("wrong", "✗", "wrong")
    label = in_html(hit.picture.label)
    alt = f"{rank}: {hit.picture.label}, {said}, similarity {hit.similarity:.2f}"
    return (
        f'<li class="{kind}" title="{label}, similarity {hit.similarity:.3f}">{_image(hit.picture, alt, address)}'
        f'<p><b aria-hidden="true">{sign}</b> {_breakable(label)}</p></li>'
    )


def _breakable(escaped: str) -> str:
    """A name that may go on in another line after a _ of it."""
    return escaped.replace("_", "_<wbr>")


def _image(picture: Picture, alt: str, address: Callable[[Picture], str]) -> str:
    few = ' class="pixels"' if has_few_pixels(picture) else ""
    return f'<img{few} src="{address(picture)}" alt="{in_html(alt)}">'


_WRITERS: dict[type[Any], Callable[[Any, str], str]] = {
    Text: _text,
    Tiles: _tiles,
    Side: _side,
    Table: _table,
    Figure: _figure,
    Gallery: _gallery,
}
