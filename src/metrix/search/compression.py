"""Vectors compressed into codes of a few bytes, searched by these codes alone.

float32            4 bytes for each number
float16            2
sq8                1: a number in 256 steps between the smallest and the largest of its dimension
pqM                M bytes for a vector: each of its M parts becomes the nearest of 256 centres
binary             1 bit for each number, its sign; vectors are compared by how many bits differ
binary, rescored   the same bits: the nearest by them are compared again with the query in float32

All but `binary` compare a query in float32 with what the codes of an item stand for.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, unknown_choice
from metrix.extras import import_extra
from metrix.search.faiss_kinds import PQ_MINIMUM

RESCORED = 4  # times k, that are compared again; 100 at least
AT_LEAST = 100
TIMED = 100  # queries
NEIGHBOURS = 10
KINDS = ("float32", "float16", "sq8", "pqM", "binary")
_PQ = re.compile(r"pq([1-9][0-9]*)")

Search = Callable[[NDArray[np.float32], int], NDArray[np.int64]]


@dataclass(frozen=True)
class Codes:
    """Items in codes.

    Attributes:
        kind: how they are compressed.
        bytes: of an item.
        search: rows (q, k) of the nearest items, nearest first.
    """

    kind: str
    bytes: int
    search: Search

    def time_query(self, queries: NDArray[np.float32]) -> float:
        """Seconds that a query takes alone: the median of some, for 10 neighbours each."""
        seconds = []
        for query in queries[: TIMED + 1]:
            begin = time.perf_counter()
            self.search(query[None], NEIGHBOURS)
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds[1:] or seconds)  # the first warms up


@dataclass(frozen=True)
class CodeSearcher:
    """A search of codes for `metrix.evaluate.retrieval`, by the numbers of queries."""

    codes: Codes
    queries: NDArray[np.float32]

    def search_rows(self, rows: NDArray[np.intp], k: int, /) -> NDArray[np.int64]:
        """The neighbours of some queries."""
        return self.codes.search(self.queries[rows], k)


def parse_kinds(text: str) -> tuple[str, ...]:
    """The kinds that a user named.

    >>> parse_kinds("sq8,pq32,binary")
    ('sq8', 'pq32', 'binary')
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in KINDS[:3] + KINDS[4:] and not _PQ.fullmatch(name):
            raise unknown_choice("--compress", name, (*KINDS[:3], "pq32", KINDS[4]))
    return names


def why_impossible(kind: str, dim: int, count: int) -> str | None:
    """Why vectors of this dimension cannot be compressed so; None if they can."""
    found = _PQ.fullmatch(kind)
    if found and dim % int(found[1]):
        return f"{kind}: expected a number of bytes that divides the dimension {dim}, got {found[1]}"
    if found and count < PQ_MINIMUM:
        return f"{kind}: expected at least {PQ_MINIMUM} vectors, got {count}"
    return None


def compress(vectors: NDArray[np.float32], kind: str, seed: int = 0) -> list[Codes]:
    """Codes of unit vectors (n, d), trained on these; of `binary`, without and with a second comparison.

    Which of equally near items comes first is drawn at random, so that neighbours in the list have no advantage.
    """
    count, dim = vectors.shape
    if why := why_impossible(kind, dim, count):
        raise InvalidInput(why)
    order = np.random.default_rng(seed).permutation(count)
    shuffled = np.ascontiguousarray(vectors[order], np.float32)
    if kind == "binary":
        return [
            Codes(name, -(-dim // 8), _in_order(order, search))
            for name, search in zip(("binary", "binary, rescored"), _binary(shuffled), strict=True)
        ]
    index = _empty(kind, dim, seed)
    index.train(shuffled)
    index.add(shuffled)

    def search(queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = index.search(np.ascontiguousarray(queries), min(k, count))[1]
        return found

    return [Codes(kind, int(index.sa_code_size()), _in_order(order, search))]


def _in_order(order: NDArray[np.int64], search: Search) -> Search:
    return lambda queries, k: order[search(queries, k)]


def _empty(kind: str, dim: int, seed: int) -> Any:
    faiss = import_extra("faiss")
    if kind == "float32":
        return faiss.IndexFlatIP(dim)
    if kind in ("float16", "sq8"):
        codec = faiss.ScalarQuantizer.QT_fp16 if kind == "float16" else faiss.ScalarQuantizer.QT_8bit
        return faiss.IndexScalarQuantizer(dim, codec, faiss.METRIC_INNER_PRODUCT)
    found = faiss.IndexPQ(dim, int(kind.removeprefix("pq")), 8, faiss.METRIC_INNER_PRODUCT)
    found.pq.cp.min_points_per_centroid = 1  # the default warns on the terminal
    found.pq.cp.seed = seed
    return found


def _binary(vectors: NDArray[np.float32]) -> tuple[Search, Search]:
    """Searches by differing bits alone, and with the nearest compared again as vectors of ±1."""
    faiss = import_extra("faiss")
    count, dim = vectors.shape
    index = faiss.IndexBinaryFlat(8 * -(-dim // 8))
    bits = np.packbits(vectors > 0, axis=1)
    index.add(bits)

    def nearest(queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        found: NDArray[np.int64] = index.search(np.packbits(queries > 0, axis=1), min(k, count))[1]
        return found

    def rescored(queries: NDArray[np.float32], k: int) -> NDArray[np.int64]:
        rows = nearest(queries, max(RESCORED * k, AT_LEAST))
        signs = np.unpackbits(bits[rows], axis=2, count=dim).astype(np.float32) * 2 - 1  # (q, candidates, d)
        similarity = np.einsum("qcd,qd->qc", signs, queries)
        best = np.argsort(-similarity, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(rows, best, axis=1)

    return nearest, rescored
