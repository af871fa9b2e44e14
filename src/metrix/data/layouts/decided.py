"""A table of decisions on labels, as `metrix label` writes it: a line for each decision, the last of an image counts.

Read as a manifest, it has the images that were decided to have a label. Those that were deleted, are duplicates, or
whose decision was undone, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DECISION, PATH, LABEL = "decision", "path", "label"
UNDO = "undo"
REMOVED = ("delete", "duplicate")  # the image is no longer of the data
# keep: the label is right; accept: the proposed one is; relabel, class: another is, or a new one
DECISIONS = ("keep", "accept", "relabel", "class", *REMOVED, UNDO)
COLUMNS = ("id", PATH, "old", "new", LABEL, "of", "who", "when", DECISION)
HISTORY = ("id", "old", "new", "of", "who", "when", DECISION)  # what is no part of a manifest


def is_history(table: Mapping[str, Any]) -> bool:
    """Whether a table is one of decisions."""
    return {PATH, DECISION} <= table.keys()


def keep_last(table: Mapping[str, list[Any]], keys: Sequence[str] = (PATH,)) -> tuple[dict[str, list[Any]], str]:
    """A table of decisions as a manifest, and a note on what it leaves out; empty for nothing.

    `keys` are the columns that say which image a line is about.

    >>> keep_last({"path": ["a", "b", "a"], "label": ["x", "y", ""], "decision": ["keep", "relabel", "delete"]})
    ({'path': ['b'], 'label': ['y']}, '1 image is left out that was deleted, a duplicate, undone or without a label')
    """
    last: dict[tuple[str, ...], int] = {}
    for row in range(len(table[PATH])):
        key = tuple(str(table[name][row]) for name in keys if name in table)
        last.pop(key, None)
        last[key] = row
    rows = [row for row in last.values() if _has_label(table, row)]
    gone = len(last) - len(rows)
    said = "" if not gone else f"{gone:,} image{' is' if gone == 1 else 's are'} left out that "
    said += "" if not gone else f"{'was' if gone == 1 else 'were'} deleted, a duplicate, undone or without a label"
    return {name: [values[row] for row in rows] for name, values in table.items() if name not in HISTORY}, said


def _has_label(table: Mapping[str, list[Any]], row: int) -> bool:
    label = table[LABEL][row] if LABEL in table else None
    return table[DECISION][row] not in (*REMOVED, UNDO) and label is not None and bool(str(label).strip())
