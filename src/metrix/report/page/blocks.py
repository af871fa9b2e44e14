"""The building blocks of a page: plain values without markup."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from metrix.report.page.drawing import render_svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

Rows: TypeAlias = Sequence[Sequence[object]]  # of a CSV file, the header first


@dataclass(frozen=True)
class Text:
    """Paragraphs; a `note` is set apart, and `missing` states what could not be shown and why."""

    text: str
    tone: Literal["plain", "note", "missing"] = "plain"


@dataclass(frozen=True)
class Value:
    """A number of a table, with its standard deviation or interval.

    >>> Value(45.29, std=0.312).text, Value(1.5, interval=(0.2, 2.75), sign=True, mark="*").text
    ('45.29 ± 0.31', '+1.50 * (+0.20 to +2.75)')
    """

    value: float
    std: float | None = None
    interval: tuple[float, float] | None = None
    digits: int = 2
    sign: bool = False
    mark: str = ""  # of a footnote, such as *
    below: str = ""  # a small second line, such as the paper's number

    @property
    def number(self) -> str:
        """The number alone, rounded as shown."""
        return self._format(self.value)

    @property
    def about(self) -> str:
        """The standard deviation or the interval, as shown."""
        if self.std is not None:
            return f"± {self.std:.{self.digits}f}"
        if self.interval is not None:
            return f"({self._format(self.interval[0])} to {self._format(self.interval[1])})"
        return ""

    @property
    def text(self) -> str:
        """Number, mark, deviation or interval, and second line, in one line."""
        return " ".join(part for part in (self.number, self.mark, self.about, self.below) if part)

    def _format(self, value: float) -> str:
        return f"{value:{'+' if self.sign else ''},.{self.digits}f}"


Cell: TypeAlias = Value | str | int | float | None


def cell_text(cell: str | int | float | None) -> str:
    """A cell without a `Value` as text.

    >>> [cell_text(cell) for cell in ("a", 12345, 0.123456, None)]
    ['a', '12,345', '0.1235', '–']
    """
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return "–" if cell is None else cell if isinstance(cell, str) else f"{cell:,}"


@dataclass(frozen=True)
class Column:
    """A column of a table; neighbouring columns with the same `group` share a heading."""

    name: str
    group: str = ""
    text: bool = False  # words, aligned left; numbers are aligned right


@dataclass(frozen=True)
class Table:
    """Rows under columns. The first cell of a row is its name; a row that is only a string is a heading.

    `best` are the (row, column) of the values that are marked as the best, such as `metrix.report.leaders` finds them.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell] | str]
    caption: str = ""
    footnotes: Sequence[str] = ()
    name: str = "table"  # of its CSV file
    best: Collection[tuple[int, int]] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if not isinstance(row, str) and len(row) != len(self.columns):
                raise ValueError(f"a row of {len(row)} cells in a table of {len(self.columns)} columns: {row!r}")

    @property
    def data(self) -> list[list[object]]:
        """Rows of a CSV file with numbers in full; deviations and intervals have columns of their own."""
        values = [[row[c] for row in self.rows if not isinstance(row, str)] for c in range(len(self.columns))]
        header: list[object] = ["group"] if any(isinstance(row, str) for row in self.rows) else []
        parts = [_parts_of(column) for column in values]
        for about, names in zip(self.columns, parts, strict=True):
            whole = " ".join(word for word in (about.group, about.name) if word)
            header += [f"{whole} {name}".strip() for name in names]
        lines, heading = [header], ""
        for row in self.rows:
            if isinstance(row, str):
                heading = row
                continue
            line: list[object] = [heading] if header[0] == "group" else []
            for cell, names in zip(row, parts, strict=True):
                line += [_part(cell, name) for name in names]
            lines.append(line)
        return lines


def _parts_of(cells: list[Any]) -> list[str]:
    values = [cell for cell in cells if isinstance(cell, Value)]
    names = [""]
    names += ["std"] if any(value.std is not None for value in values) else []
    names += ["low", "high"] if any(value.interval is not None for value in values) else []
    return names


def _part(cell: Cell, name: str) -> object:
    if not isinstance(cell, Value):
        return ("" if cell is None else cell) if name == "" else ""
    low, high = cell.interval or (None, None)
    found = {"": cell.value, "std": cell.std, "low": low, "high": high}[name]
    return "" if found is None else found


@dataclass(frozen=True, eq=False)
class Figure:
    """A matplotlib figure; `alt` describes it in words, `data` are the numbers behind it."""

    drawing: Drawing
    alt: str
    caption: str = ""
    name: str = "figure"  # of its files
    data: Rows | None = None

    @cached_property
    def svg(self) -> str:
        """The drawing as SVG, rendered once."""
        return render_svg(self.drawing)


@dataclass(frozen=True, eq=False)
class Picture:
    """A small image with the name of its class."""

    pixels: NDArray[np.uint8]  # (height, width) or (height, width, 3)
    label: str


@dataclass(frozen=True, eq=False)
class Hit:
    """A picture that a search found; `right` if it is of the query's class, None if that is unknown."""

    picture: Picture
    right: bool | None
    similarity: float


@dataclass(frozen=True, eq=False)
class Query:
    """The picture of a query, and what each searcher found for it, nearest first."""

    picture: Picture
    found: Mapping[str, Sequence[Hit]]


@dataclass(frozen=True, eq=False)
class Gallery:
    """Queries with the pictures found for them, framed and marked as right or wrong."""

    queries: Sequence[Query]
    caption: str = ""
    name: str = "gallery"  # of its files

    @property
    def data(self) -> Rows:
        """A row for each picture found."""
        lines: list[list[object]] = [["query", "query class", "searcher", "rank", "class", "right", "similarity"]]
        for n, query in enumerate(self.queries, 1):
            for searcher, hits in query.found.items():
                for rank, hit in enumerate(hits, 1):
                    right = "" if hit.right is None else "yes" if hit.right else "no"
                    found = [hit.picture.label, right, round(hit.similarity, 6)]
                    lines.append([n, query.picture.label, searcher, rank, *found])
        return lines


@dataclass(frozen=True)
class Tile:
    """A number to emphasise."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class Tiles:
    """A few numbers to emphasise, in a row."""

    tiles: Sequence[Tile]


@dataclass(frozen=True)
class SideBySide:
    """Blocks side by side if the page is wide enough, otherwise below each other."""

    blocks: Sequence[Block] = field(default=())


Block: TypeAlias = Text | Table | Figure | Gallery | Tiles | SideBySide


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    heading: str
    blocks: Sequence[Block]


def iterate_blocks(blocks: Sequence[Block]) -> Iterator[Block]:
    """All blocks, including those inside `SideBySide`."""
    for block in blocks:
        if isinstance(block, SideBySide):
            yield from iterate_blocks(block.blocks)
        else:
            yield block
