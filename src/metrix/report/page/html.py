"""A page as one HTML file that fetches nothing, readable by people and by screen readers.

The markup is in `templates/`, where Jinja escapes every text. This module gives the templates what they cannot compute:
drawings, pictures and CSV files as addresses that hold them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrix.report.page.blocks import Column, Figure, Rows, Section, Value, cell_text
from metrix.report.page.csv import to_csv
from metrix.report.page.drawing import prefix_ids, render_png
from metrix.report.page.escaping import clean, split_paragraphs
from metrix.report.page.pictures import encode_picture, has_few_pixels

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

LARGEST_SVG = 600_000  # characters; a larger drawing is shown as PNG


def render_html(title: str, about: str, sections: Sequence[Section], anchors: Sequence[str], footer: str) -> str:
    """The whole page.

    Args:
        title: the title, also the heading.
        about: paragraphs under the title.
        sections: headings with their blocks.
        anchors: an id for each section, which the table of contents links to.
        footer: paragraphs at the end.
    """
    from markupsafe import Markup

    parts = [
        {"anchor": anchor, "heading": section.heading, "blocks": section.blocks}
        for anchor, section in zip(anchors, sections, strict=True)
    ]
    style = Markup(Path(__file__).with_name("style.css").read_text("utf-8"))  # nosec B704 - our own
    template = _environment().get_template("page.html")
    return template.render(
        title=title,
        about=about,
        sections=parts,
        footer=footer,
        style=style,
        picture_address=lru_cache(maxsize=None)(encode_picture),  # a picture is often shown for several runs
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("metrix.report.page"),
        autoescape=True,
        finalize=_finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.tests["value"] = lambda cell: isinstance(cell, Value)
    environment.filters |= {
        "breakable": _breakable,
        "cell_text": cell_text,
        "column_groups": _column_groups,
        "csv_address": _csv_address,
        "has_few_pixels": has_few_pixels,
        "kind": lambda block: type(block).__name__,
        "paragraphs": split_paragraphs,
        "png_address": _png_address,
        "size_in_pixels": _size_in_pixels,
        "svg_inside": _svg_inside,
    }
    return environment


def _finalize(value: Any) -> Any:
    """What Jinja escapes: text without characters that HTML forbids. Markup is left as it is."""
    return value if hasattr(value, "__html__") else clean(value)


def _breakable(label: str) -> Markup:
    """A label that may wrap after an underscore."""
    from markupsafe import Markup, escape

    return Markup("_<wbr>").join(escape(part) for part in clean(label).split("_"))


def _column_groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    """The common heading of neighbouring columns, and how many columns it spans."""
    return [(group, len(list(members))) for group, members in groupby(columns, key=lambda column: column.group)]


def _svg_inside(figure: Figure, prefix: str) -> Markup:
    """The drawing after its opening `<svg`, to which the template adds attributes; empty if it is too large."""
    from markupsafe import Markup

    drawn = prefix_ids(figure.svg, f"{prefix}-")
    return Markup(drawn.removeprefix("<svg") if len(drawn) <= LARGEST_SVG else "")  # nosec B704 - drawn by matplotlib


def _png_address(figure: Figure) -> str:
    return f"data:image/png;base64,{base64.b64encode(render_png(figure.drawing)).decode()}"


def _size_in_pixels(figure: Figure) -> tuple[int, int]:
    width, height = (round(96 * inches) for inches in figure.drawing.get_size_inches())
    return width, height


def _csv_address(rows: Rows) -> str:
    return f"data:text/csv;base64,{base64.b64encode(to_csv(rows).encode()).decode()}"
