"""Codes of a bit per entry beside those of a byte: a large index then compares few of its bytes.

    bits of all rows  →  the `reach` best of each part by their bytes  →  the candidates by their vectors

A bit per entry (RaBitQ: the sign, and how far it leads) is an eighth of a byte to read, and says the similarity up to
about 0.75 standard deviations of all similarities. So the true neighbours are among the best thousands, not the best
ten; `choose_reach` measures how many when the index is built, for ten neighbours and for a hundred: in clusters of
twenty, the first ten are found at once, and those beyond are as hard to find as without clusters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metrix.extras import import_extra
from metrix.search.vectors import MappedVectors

SKETCHED = 200_000  # rows from which on a sketch is faster than all bytes
PART = 5_000_000  # rows; parts are searched at the same time
QUERY_BITS = 4  # per entry of a query: more is no more accurate
TRAINED = 100_000  # rows from which the centre is taken
ROWS_AT_ONCE = 65_536
QUERIES_AT_ONCE = 16  # each has `reach` candidates
REACHED = 0.99  # of the true neighbours, that a search has to reach
NEAR_K, FAR_K = 10, 100  # neighbours that a reach is measured for
MOST = 16  # a reach of more than one row in so many is no faster than all bytes


class Reach(NamedTuple):
    """How many rows of a part to compare by their bytes; 0 where it is too many, or was not measured."""

    near: int = 0  # for the NEAR_K nearest
    far: int = 0  # for the FAR_K nearest, and with a filter, which may leave out all that are near


class Sketch:
    """The bits of the first rows of an index, in parts, each over the bytes of all of them."""

    def __init__(self, parts: Sequence[Any], codes: Any) -> None:
        self.parts = list(parts)
        self._rows = int(sum(part.ntotal for part in self.parts))
        self._numbered = list(_number_rows(self.parts, codes.ntotal))
        self._refined = [_refine(part, codes) for part in self._numbered]

    def __len__(self) -> int:
        return self._rows

    def reach_for(self, k: int, reach: Reach, filtered: bool) -> int:
        """How many rows of a part to compare by their bytes for k neighbours; 0 where all bytes are as fast."""
        near = k <= NEAR_K + 1 and not filtered  # one more is the query itself, as when the reach was measured
        wanted = reach.near if near else math.ceil(reach.far * max(k, FAR_K) / FAR_K)
        return wanted if wanted <= self._rows // MOST else 0

    def find_candidates(
        self, queries: NDArray[np.float32], wanted: int, reach: int, kept: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """Similarities and rows (q, parts · wanted) of the best by their bytes, of the `reach` best by their bits."""
        faiss = import_extra("faiss")

        def make_parameters() -> Any:
            given = {} if kept is None else {"sel": faiss.IDSelectorBitmap(np.packbits(kept, bitorder="little"))}
            bits = faiss.RaBitQSearchParameters(qb=QUERY_BITS, **given)
            return faiss.IndexRefineSearchParameters(k_factor=max(1.0, reach / wanted), base_index_params=bits)

        return self._search(self._refined, queries, wanted, make_parameters)

    def choose_reach(self, queries: NDArray[np.float32], truth: NDArray[np.int64]) -> Reach:
        """How many rows of a part have to be compared for REACHED of the true neighbours (q, FAR_K)."""
        faiss = import_extra("faiss")

        def make_parameters() -> Any:
            return faiss.RaBitQSearchParameters(qb=QUERY_BITS)

        found = dict.fromkeys((NEAR_K, FAR_K), 0)
        reach = max(1, self._rows // (8 * MOST))
        while reach <= self._rows // MOST and not all(found.values()):
            ranks: dict[int, list[NDArray[np.int64]]] = {k: [] for k, known in found.items() if not known}
            for query, true in zip(queries, truth, strict=True):
                _, rows = self._search(self._numbered, query[None], reach, make_parameters)
                for k, places in ranks.items():
                    places.append(np.flatnonzero(np.isin(rows[0], true[:k][true[:k] >= 0])) % reach + 1)
            for k, places in ranks.items():
                needed, last = np.sort(np.concatenate(places)), math.ceil(REACHED * int((truth[:, :k] >= 0).sum())) - 1
                found[k] = int(needed[last]) if last < len(needed) else 0
            reach *= 2
        return Reach(found[NEAR_K], found[FAR_K])

    def _search(
        self, indexes: Sequence[Any], queries: NDArray[np.float32], wanted: int, make_parameters: Callable[[], Any]
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        def search_part(index: Any) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
            # of its own: while it searches, an IndexIDMap puts a selector of its own rows into its parameters
            parameters = make_parameters()
            found = [
                search_faiss(index, queries[start : start + QUERIES_AT_ONCE], wanted, parameters)
                for start in range(0, len(queries), QUERIES_AT_ONCE)
            ]
            return np.concatenate([one[0] for one in found]), np.concatenate([one[1] for one in found])

        if len(indexes) == 1:
            return search_part(indexes[0])
        with ThreadPoolExecutor(len(indexes)) as threads:
            both = list(threads.map(search_part, indexes))
        return np.concatenate([one[0] for one in both], axis=1), np.concatenate([one[1] for one in both], axis=1)


def build_parts(vectors: MappedVectors, count: int, last: Any = None, first: int = 0) -> Iterator[Any]:
    """Parts of a sketch of the rows from `first` to `count`; `last` is one of them that has room."""
    faiss = import_extra("faiss")

    if last is None:
        chosen = np.random.default_rng(0).choice(count, min(count, TRAINED), replace=False)
        last = faiss.IndexRaBitQ(vectors.shape[1], faiss.METRIC_INNER_PRODUCT)
        last.train(vectors[np.sort(chosen)])
    centre = faiss.vector_to_array(last.center)
    while first < count:
        stop = min(count, first + PART)
        for at in range(first + last.ntotal, stop, ROWS_AT_ONCE):
            last.add(np.ascontiguousarray(vectors[at : min(at + ROWS_AT_ONCE, stop)]))
        yield last
        first, last = stop, faiss.IndexRaBitQ(vectors.shape[1], faiss.METRIC_INNER_PRODUCT)
        faiss.copy_array_to_vector(centre, last.center)
        last.is_trained = True


def search_faiss(
    index: Any, queries: NDArray[np.float32], wanted: int, parameters: Any
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Similarities and rows (q, wanted) that a faiss index finds, row -1 for none."""
    faiss = import_extra("faiss")

    queries = np.ascontiguousarray(queries)
    similarities = np.empty((len(queries), wanted), np.float32)
    rows = np.empty((len(queries), wanted), np.int64)
    given, out, rows_out = (faiss.swig_ptr(array) for array in (queries, similarities, rows))
    # `search` itself: faiss.contrib.torch_utils replaces it with one that takes no parameters.
    index.search_c(len(queries), given, wanted, out, rows_out, parameters)
    return similarities, rows


def _number_rows(parts: Sequence[Any], count: int) -> Iterator[Any]:
    """Parts that answer with rows of the index."""
    faiss = import_extra("faiss")

    first = 0
    for part in parts:
        numbered = faiss.IndexIDMap(faiss.IndexRaBitQ(part.d, faiss.METRIC_INNER_PRODUCT))
        faiss.copy_array_to_vector(np.arange(first, first + part.ntotal), numbered.id_map)
        numbered.index, numbered.is_trained, numbered.ntotal = part, True, count  # as many as have bytes, for `_refine`
        first += part.ntotal
        yield numbered


def _refine(numbered: Any, codes: Any) -> Any:
    faiss = import_extra("faiss")

    found = faiss.IndexRefine(numbered, codes)
    found.is_trained = True
    return found
