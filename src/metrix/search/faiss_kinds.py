"""The approximate kinds of faiss: codes of vectors, in a graph, in cells around k-means centres, or in a row.

Each finds candidates by short codes; the store then compares those with the vectors themselves. An index therefore
holds every vector once, at full precision, and codes of an eighth to a quarter of its size.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput
from metrix.extras import import_extra
from metrix.search.settings import Settings
from metrix.search.vectors import MappedVectors

HNSW_CONSTRUCTION = 100
TRAINED = 100_000  # vectors from which the ranges of codes are taken
TRAINED_PER_CELL = 40  # vectors for k-means: 39 is the least that faiss recommends, and the time grows with them
PQ_MINIMUM = 256  # vectors: a code of a byte has as many values
MANY_CELLS = 2048  # from which on the nearest cells are found by a graph
ROWS_AT_ONCE = 65_536
_SILENCE = threading.Lock()


@dataclass(frozen=True)
class ApproximateKind:
    """How faiss holds the codes of one kind of index."""

    help: str
    candidates: int  # times k, that are compared exactly; codes that say less need more
    in_cells: bool
    without_code: int  # one row in so many may have no code yet, and is compared exactly
    empty: Callable[[int, int, Settings], Any]  # of (dimension, count, settings): the index, not trained yet


def _empty_hnsw(dim: int, count: int, settings: Settings) -> Any:
    faiss = import_extra("faiss")

    graph = faiss.IndexHNSWSQ(dim, faiss.ScalarQuantizer.QT_8bit, settings.links, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = HNSW_CONSTRUCTION, settings.breadth
    return graph


def _empty_sq8(dim: int, count: int, settings: Settings) -> Any:
    faiss = import_extra("faiss")

    return faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT)


def _empty_ivf(dim: int, count: int, settings: Settings) -> Any:
    faiss = import_extra("faiss")

    cells, _ = settings.cells_for(count)
    centres = _empty_centres(dim, cells, settings)
    codes = faiss.ScalarQuantizer.QT_8bit
    return _in_cells(
        faiss.IndexIVFScalarQuantizer(centres, dim, cells, codes, faiss.METRIC_INNER_PRODUCT), centres, settings, count
    )


def _empty_ivf_pq(dim: int, count: int, settings: Settings) -> Any:
    faiss = import_extra("faiss")

    if count < PQ_MINIMUM:
        raise InvalidInput(f"ivf-pq: expected at least {PQ_MINIMUM} vectors, got {count}; build another kind, as exact")
    cells, _ = settings.cells_for(count)
    centres = _empty_centres(dim, cells, settings)
    found = faiss.IndexIVFPQ(centres, dim, cells, settings.code_bytes_for(dim), 8, faiss.METRIC_INNER_PRODUCT)
    found.pq.cp.min_points_per_centroid = 1  # the default warns on the terminal
    found.pq.cp.seed = settings.seed
    return _in_cells(found, centres, settings, count)


def _empty_centres(dim: int, cells: int, settings: Settings) -> Any:
    faiss = import_extra("faiss")

    if cells < MANY_CELLS:
        return faiss.IndexFlatIP(dim)
    centres = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
    centres.hnsw.efConstruction = 200
    centres.hnsw.efSearch = max(128, 2 * (settings.probes or cells // 8))
    return centres


def _in_cells(found: Any, centres: Any, settings: Settings, count: int) -> Any:
    faiss = import_extra("faiss")

    found.own_fields = True
    centres.this.disown()  # it belongs to `found` now, which outlives this name
    if isinstance(centres, faiss.IndexHNSWFlat):
        found.quantizer_trains_alone = 2  # k-means compares with all centres; the graph of them is built after it
    found.cp.min_points_per_centroid = 1  # the default warns on the terminal
    found.cp.seed, found.nprobe = settings.seed, settings.cells_for(count)[1]
    return found


APPROXIMATE = {
    "hnsw": ApproximateKind("a graph, fastest for one query", 4, False, 20, _empty_hnsw),
    "ivf": ApproximateKind("cells with codes of a byte per entry, quickly built", 4, True, 20, _empty_ivf),
    "sq8": ApproximateKind("codes of a byte per entry; a large one finds them by a bit", 4, False, 200, _empty_sq8),
    "ivf-pq": ApproximateKind(
        "cells with codes of an eighth of a byte per entry, smallest", 50, True, 20, _empty_ivf_pq
    ),
}


def build_codes(vectors: MappedVectors, kind: str, settings: Settings, on_disk: Path | None = None) -> Any:
    """The faiss index of an approximate kind; inverted lists past `settings.memory` are in the file `on_disk`."""
    count, dim = vectors.shape
    codes = APPROXIMATE[kind].empty(dim, count, settings)
    codes.train(_sample(vectors, codes, kind, settings))
    if APPROXIMATE[kind].in_cells and on_disk is not None and count * codes.code_size > settings.memory:
        return _lists_on_disk(codes, vectors, settings, on_disk)
    extend_codes(codes, vectors)
    return codes


def extend_codes(codes: Any, vectors: MappedVectors) -> None:
    """Add the vectors that codes do not have yet."""
    faiss = import_extra("faiss")

    if isinstance(codes, faiss.IndexFlatCodes):  # memory for all at once: growing would take twice as much
        size = codes.codes.size()
        codes.codes.resize(len(vectors) * codes.code_size)
        codes.codes.resize(size)
    for at in range(codes.ntotal, len(vectors), ROWS_AT_ONCE):
        codes.add(np.ascontiguousarray(vectors[at : at + ROWS_AT_ONCE]))


def build_parameters(codes: Any, kind: str, settings: Settings, k: int, kept: NDArray[np.bool_] | None) -> Any:
    """The parameters of a search for k candidates; `kept` says which rows may be found."""
    faiss = import_extra("faiss")

    selected: dict[str, Any] = {}
    if kept is not None:
        selected["sel"] = faiss.IDSelectorBitmap(np.packbits(kept, bitorder="little"))
    if kind == "hnsw":
        return faiss.SearchParametersHNSW(efSearch=max(settings.breadth, k), **selected)
    if kind == "sq8":
        return faiss.SearchParameters(**selected)
    return faiss.SearchParametersIVF(nprobe=settings.probes or codes.nprobe, **selected)


def _sample(vectors: MappedVectors, codes: Any, kind: str, settings: Settings) -> NDArray[np.float32]:
    """What codes are trained on: some vectors, drawn at random."""
    count, dim = vectors.shape
    cells = codes.nlist if APPROXIMATE[kind].in_cells else 0
    wanted = min(count, max(TRAINED_PER_CELL * cells, TRAINED), max(cells, PQ_MINIMUM, settings.memory // (4 * dim)))
    if wanted == count:
        return np.ascontiguousarray(vectors[:])
    rows = np.sort(np.random.default_rng(settings.seed).choice(count, wanted, replace=False))
    return vectors[rows]


def _lists_on_disk(trained: Any, vectors: MappedVectors, settings: Settings, path: Path) -> Any:
    """Inverted lists past memory: part by part into files, then merged into one that stays on disk."""
    faiss = import_extra("faiss")
    from faiss.contrib.ondisk import merge_ondisk

    count, dim = vectors.shape
    rows = max(1, settings.memory // (trained.code_size + 4 * dim))  # the vectors of a part and its lists
    parts: list[Path] = []
    try:
        for start in range(0, count, rows):
            part = faiss.clone_index(trained)
            stop = min(start + rows, count)
            for at in range(start, stop, ROWS_AT_ONCE):
                end = min(at + ROWS_AT_ONCE, stop)
                part.add_with_ids(np.ascontiguousarray(vectors[at:end]), np.arange(at, end))
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
    """Keep off standard output, which is for results, what faiss prints there about the files of inverted lists.

    One thread at a time: a second one would take the silence of the first for the output to restore.
    """
    with _SILENCE:
        sys.stdout.flush()
        kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 1)
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)
            os.close(nowhere)
