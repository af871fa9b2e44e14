"""How each class fares: its measures, and the class that it is confused with most.

Of thousands of classes only the worst and the best are shown and stored; `Evaluation.write_per_class` writes all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from metrix.evaluate import ConfusedPair, Retrieval

SHOWN = 10  # of the worst classes, of the best classes, and of the confused pairs
MEASURES = ("recall@1", "map@r")  # what classes are ordered by and shown with, where it was measured


@dataclass(frozen=True)
class ClassRow:
    """One class."""

    label: Any
    images: int  # queries and gallery together
    queries: int
    measures: dict[str, float]  # means over its queries
    confused_with: Any = None  # the class that most of its wrong queries find first; None if none is wrong
    confused: int = 0  # how many do

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "label": self.label,
            "images": self.images,
            "queries": self.queries,
            **self.measures,
            "confused_with": self.confused_with,
            "confused_queries": self.confused,
        }


@dataclass(frozen=True)
class ClassSummary:
    """The worst and the best classes, no class in both, and the pairs of classes that are confused most."""

    classes: int  # with queries, in all
    wrong: int  # queries that find another class first
    worst: Sequence[ClassRow]  # worst first
    best: Sequence[ClassRow]  # best first
    confused: Sequence[ConfusedPair]  # most first

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "classes": self.classes,
            "wrong_queries": self.wrong,
            "worst": [row.to_dict() for row in self.worst],
            "best": [row.to_dict() for row in self.best],
            "confused": [pair._asdict() for pair in self.confused],
        }


def list_classes(found: Retrieval) -> list[ClassRow]:
    """All classes with queries, the worst first: by Recall@1, then MAP@R; of equal ones, the one with more queries."""
    assert found.confusion is not None
    confusion, confused = found.confusion, found.confusion.most_confused()
    images = dict(zip(confusion.names.tolist(), confusion.images.tolist(), strict=True))
    rows = []
    for label, values in found.per_class.items():
        measures = {name: value for name, value in values.items() if name != "queries"}
        other, count = confused.get(label, (None, 0))
        rows.append(ClassRow(label, images[label], int(values["queries"]), measures, other, count))
    shown = list_measures(found)
    return sorted(rows, key=lambda row: ([row.measures[name] for name in shown], -row.queries))


def list_measures(found: Retrieval) -> list[str]:
    """The measures that classes are shown with: Recall@1 and MAP@R, as far as they were measured."""
    return [name for name in MEASURES if name in found.per_query]


def summarise_classes(found: Retrieval, shown: int = SHOWN) -> ClassSummary:
    """The `shown` worst classes, as many of the best among the others, and as many confused pairs.

    Args:
        found: measures with confusion, from `evaluate.retrieval(..., confusion=True)`.
        shown: the number of each.
    """
    assert found.confusion is not None
    rows = list_classes(found)
    names = list_measures(found)
    kept = [
        ClassRow(
            row.label,
            row.images,
            row.queries,
            {name: row.measures[name] for name in names},
            row.confused_with,
            row.confused,
        )
        for row in (*rows[:shown], *rows[max(shown, len(rows) - shown) :])
    ]
    return ClassSummary(
        int(np.count_nonzero(found.confusion.queries)),
        found.confusion.wrong,
        kept[:shown],
        kept[shown:][::-1],
        found.confusion.pairs(shown),
    )
