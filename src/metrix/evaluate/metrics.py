"""Measures of retrieval by name, in the order of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAMES = {"map@r": "MAP@R", "r_precision": "R-precision", "map": "mAP"}


def measure_name(name: str) -> str:
    """A measure as papers write it.

    >>> measure_name("recall@1"), measure_name("map@4"), measure_name("map@r")
    ('Recall@1', 'mAP@4', 'MAP@R')
    """
    if name in _NAMES:
        return _NAMES[name]
    kind, _, k = name.partition("@")
    return f"{'mAP' if kind == 'map' else kind.capitalize()}@{k}"


def ordered(measures: Mapping[str, Any]) -> list[str]:
    """Names of measures in the order of a table."""
    kinds = ("recall@", "map@r", "r_precision", "map", "precision@", "map@")
    rank = {name: next(n for n, kind in enumerate(kinds) if name == kind or _of(kind, name)) for name in measures}
    return sorted(measures, key=lambda name: rank[name])


def _of(kind: str, name: str) -> bool:
    return kind.endswith("@") and name.startswith(kind)
