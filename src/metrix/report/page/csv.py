"""Rows as CSV."""

from __future__ import annotations

import csv
import io

from metrix.report.page.blocks import Rows
from metrix.report.page.escaping import clean


def to_csv(rows: Rows) -> str:
    r"""Comma-separated lines: numbers in full, an empty cell for None and NaN.

    >>> to_csv([["a", "b"], [1.5, float("nan")]])
    'a,b\n1.5,\n'
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return buffer.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, str):
        return clean(value)
    return "" if value is None or value != value else value  # NaN is not itself
