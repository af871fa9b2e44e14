"""How an approximate index is built and searched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from metrix.errors import DataError, InvalidInput, check_integer

MEMORY = 4 << 30  # bytes of codes past which the inverted lists of ivf and ivf-pq are built on disk
MOST = (1 << 31) - 1  # that faiss takes for a setting
MOST_LINKS = 1024  # of a node of hnsw
# What faiss can do with, where it does not end the process or never ends.
_RANGES = {
    "cells": (1, MOST),
    "probes": (1, MOST),
    "links": (2, MOST_LINKS),
    "breadth": (1, MOST),
    "code_bytes": (1, MOST),
    "candidates": (1, MOST),
    "seed": (0, MOST),
}
_KEPT = (*_RANGES, "half")  # with an index


@dataclass(frozen=True)
class Settings:
    """How an approximate index is built and searched; None is a default that depends on its size or kind.

    An index keeps its settings when it is changed. A default follows its size when cells are made anew, as they are
    after items were deleted or replaced; items that are only added go into the cells that there are.

    cells, probes: of ivf and ivf-pq, how many cells there are (4 √n) and how many a search looks into (an eighth).
    links, breadth: of hnsw, edges of a node and how many candidates a search keeps.
    code_bytes: of ivf-pq, the length of a code (an eighth of the dimension).
    candidates: how many times k are compared exactly, after they were found by their codes.
    half: vectors are kept in float16, which halves the files and changes similarities by about 0.0002.
    """

    cells: int | None = None
    probes: int | None = None
    links: int = 32
    breadth: int = 64
    code_bytes: int | None = None
    candidates: int | None = None
    half: bool = False
    seed: int = 0
    memory: int = MEMORY

    def __post_init__(self) -> None:
        for name, (least, most) in _RANGES.items():
            if (value := getattr(self, name)) is not None:
                check_integer(name, value, least, most)

    def asked(self) -> dict[str, int]:
        """What was asked for, to be stored with the index; defaults that depend on size or kind are left out."""
        return {name: int(value) for name in _KEPT if (value := getattr(self, name)) is not None}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Settings:
        """The settings that `asked` gave; what an index of an earlier version has not stored is the default."""
        found = {name: stored[name] for name in _KEPT if name in stored}
        try:
            return cls(**{**found, "half": bool(check_integer("half", found.get("half", 0), 0, 1))})
        except InvalidInput as error:
            raise DataError(f"place.{error} in the description; build the index anew") from error

    def fitting(self, count: int) -> Settings:
        """These settings for an index that has become so small that it cannot have as many cells."""
        if self.cells is None or self.cells <= count:
            return self
        return replace(self, cells=count, probes=None if self.probes is None else min(self.probes, count))

    def cells_for(self, count: int) -> tuple[int, int]:
        """(cells, probes) for so many vectors."""
        cells = min(count, 1 + round(4 * math.sqrt(count))) if self.cells is None else self.cells
        probes = max(1, math.ceil(cells / 8)) if self.probes is None else self.probes
        if not 1 <= probes <= cells <= count:
            raise InvalidInput(
                f"cells, probes: expected 1 <= probes <= cells <= {count} vectors, got cells={cells}, probes={probes}"
            )
        return cells, probes

    def code_bytes_for(self, dim: int) -> int:
        """The length of a code of ivf-pq: a divisor of the dimension."""
        if self.code_bytes is None:
            return next(m for m in range(max(1, dim // 8), 0, -1) if dim % m == 0)
        if self.code_bytes < 1 or dim % self.code_bytes:
            raise InvalidInput(f"code_bytes: expected a divisor of the dimension {dim}, got {self.code_bytes}")
        return self.code_bytes
