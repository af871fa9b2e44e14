"""The approximate kinds of faiss: a graph (hnsw), or cells around k-means centres (ivf), in memory or on disk."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.extras import import_extra

MEMORY = 4 << 30  # bytes of vectors past which the inverted lists of ivf are built on disk
HNSW_CONSTRUCTION = 100
TRAINED_PER_CELL = 40  # vectors for k-means: 39 is the least that faiss recommends, and the time grows with them
ROWS_AT_ONCE = 65_536
_KEPT = ("cells", "probes", "links", "breadth", "seed")  # of the settings, what is stored with an index


@dataclass(frozen=True)
class Settings:
    """How an approximate index is built and searched; None is a default that depends on its size.

    An index keeps its settings when it is changed. A default follows its size when cells are made anew, as they are
    after items were deleted or replaced; items that are only added go into the cells that there are.

    cells, probes: of ivf, how many cells there are (4 √n) and how many a search looks into (an eighth).
    links, breadth: of hnsw, edges of a node and how many candidates a search keeps.
    """

    cells: int | None = None
    probes: int | None = None
    links: int = 32
    breadth: int = 64
    seed: int = 0
    memory: int = MEMORY

    def asked(self) -> dict[str, int]:
        """What was asked for, to be stored with the index; defaults that depend on the size are left out."""
        return {name: value for name in _KEPT if (value := getattr(self, name)) is not None}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Settings:
        """The settings that `asked` gave; what an index of an earlier version has not stored is the default."""
        return cls(**{name: int(stored[name]) for name in _KEPT if name in stored})

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


def build_graph(vectors: NDArray[np.float32], kind: str, settings: Settings, on_disk: Path | None) -> Any:
    """The faiss index of an approximate kind; None for the exact one."""
    faiss = import_extra("faiss")

    count, dim = vectors.shape
    if kind == "exact":
        return None
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(dim, settings.links, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction, graph.hnsw.efSearch = HNSW_CONSTRUCTION, settings.breadth
        _add(graph, vectors, 0, count)
        return graph
    cells, probes = settings.cells_for(count)
    graph = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, cells, faiss.METRIC_INNER_PRODUCT)
    graph.cp.min_points_per_centroid = 1  # the default warns on the terminal
    graph.cp.seed, graph.nprobe = settings.seed, probes
    graph.train(_sample(vectors, cells, settings))
    if on_disk is None or vectors.nbytes <= settings.memory:
        _add(graph, vectors, 0, count)
        return graph
    return _lists_on_disk(graph, vectors, settings, on_disk)


def _sample(vectors: NDArray[np.float32], cells: int, settings: Settings) -> NDArray[np.float32]:
    """What the cells are trained on: some vectors for each, drawn at random."""
    wanted = min(len(vectors), TRAINED_PER_CELL * cells, max(cells, settings.memory // (4 * vectors.shape[1])))
    if wanted == len(vectors):
        return np.ascontiguousarray(vectors)
    rows = np.sort(np.random.default_rng(settings.seed).choice(len(vectors), wanted, replace=False))
    return np.array(vectors[rows])


def _add(graph: Any, vectors: NDArray[np.float32], start: int, stop: int) -> None:
    for at in range(start, stop, ROWS_AT_ONCE):
        graph.add(np.ascontiguousarray(vectors[at : min(at + ROWS_AT_ONCE, stop)]))


def _lists_on_disk(trained: Any, vectors: NDArray[np.float32], settings: Settings, path: Path) -> Any:
    """Inverted lists past memory: part by part into files, then merged into one that stays on disk."""
    faiss = import_extra("faiss")
    from faiss.contrib.ondisk import merge_ondisk

    count, dim = vectors.shape
    rows = max(1, settings.memory // (8 * dim))  # the part and its lists, float32 each
    parts: list[Path] = []
    try:
        for start in range(0, count, rows):
            part = faiss.clone_index(trained)
            stop = min(start + rows, count)
            part.add_with_ids(np.array(vectors[start:stop]), np.arange(start, stop))
            parts.append(path.with_name(f"{path.stem}-part{len(parts)}.faiss"))
            faiss.write_index(part, str(parts[-1]))
            del part
        whole = faiss.clone_index(trained)
        with faiss_silenced():
            merge_ondisk(whole, [str(part) for part in parts], str(path))
        whole.nprobe = trained.nprobe
        return whole
    finally:
        for part_file in parts:
            part_file.unlink(missing_ok=True)


@contextlib.contextmanager
def faiss_silenced() -> Iterator[None]:
    """Keep off standard output, which is for results, what faiss prints there about the files of inverted lists."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
