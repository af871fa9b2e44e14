"""Exact search that reads a quarter: bytes in memory say which rows can be among the nearest, and prove it.

With x̂ the vector of a code and ε ≥ ‖x - x̂‖ for every row, the triangle inequality gives for a query q

    ‖x - q‖ ≥ ‖x̂ - q̂‖ - ε - ‖q - q̂‖        and        ⟨x, q⟩ = (‖x‖² + ‖q‖² - ‖x - q‖²) / 2

so a row whose code is far from that of the query cannot reach the k-th best similarity of those that were compared.
All others are compared exactly, by the kernel and in the order of a search through everything: rows, similarities and
ties are the same. Rows with a larger error than ε are few, and always compared.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metrix.extras import import_extra
from metrix.search.nearest import ONE_THREAD
from metrix.search.vectors import MappedVectors

FEWEST = 4096  # rows below which bytes save nothing
MOST_K = 99  # from 100 on, faiss collects the best in another way, with another order of ties
AFTER = 100  # queries that pay for making codes
ROWS_AT_ONCE = 16_384
LARGEST = 127  # of a code, without its sign
USUAL = 0.999  # of the rows have no larger entry, and no larger error, than codes are made for
UNUSUAL = 1.5  # times the usual error; codes are made for the largest error where it is less
PART = 40_000  # rows that are worth a thread
MOST_OF_ALL = 16  # one row in so many that may have to be compared is no faster than all
TRIES, FAILED = 32, 0.5  # after so many queries, of which so many had to be compared with all, codes are given up
ROUNDING = 2.0**-23


class ByteCodes:
    """A byte for each entry of vectors (n, d), and what they may be wrong by."""

    def __init__(self, vectors: MappedVectors) -> None:
        faiss = import_extra("faiss")

        self._dim = vectors.shape[1]
        width = -(-self._dim // 64) * 64  # whole registers
        largest = np.concatenate([np.abs(x).max(axis=1) for x in _blocks(vectors, 0, len(vectors))])
        self._step = max(float(np.quantile(largest, USUAL, method="higher")), 1e-30) / LARGEST
        self._width, self._count = width, len(vectors)
        parts = max(1, min(faiss.omp_get_max_threads(), self._count // PART))
        self._starts = [self._count * part // parts for part in range(parts + 1)]
        self._parts, errors, self._longest = [], [], 0.0
        for start, stop in itertools.pairwise(self._starts):
            part = faiss.IndexScalarQuantizer(width, faiss.ScalarQuantizer.QT_8bit_direct, faiss.METRIC_L2)
            for x in _blocks(vectors, start, stop):
                codes, error = self._encode(x)
                part.add_sa_codes(codes)
                errors.append(error)
                self._longest = max(self._longest, float(np.einsum("nd,nd->n", x, x).max()))
            self._parts.append(part)
        every = np.concatenate(errors)
        usual = float(np.quantile(every, USUAL, method="higher"))
        self._error = max(usual, float(every.max())) if every.max() <= UNUSUAL * usual else usual
        self._unusual = np.flatnonzero(every > self._error)
        self._tries = self._failed = 0

    def __len__(self) -> int:
        return self._count

    @property
    def worthwhile(self) -> bool:
        """Whether queries are answered by comparing few rows."""
        return self._tries < TRIES or self._failed < FAILED * self._tries

    def search(
        self,
        query: NDArray[np.float32],  # (1, d), unit
        k: int,
        compare: Callable[[NDArray[np.int64]], tuple[NDArray[np.float32], NDArray[np.int64]]],
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]] | None:
        """Similarities and rows (1, k) of the nearest; `compare` finds them among some rows, given in their order.

        None where too many rows can be among them.
        """
        self._tries += 1
        codes, (error,) = self._encode(query)
        asked = np.ascontiguousarray(codes, dtype=np.float32)
        wanted = 8 * k + 64
        near = self._in_parts(lambda part: part.search(asked, min(wanted, part.ntotal)))
        found = compare(self._with_unusual([rows[0] for _, rows in near]))
        radius = self._largest_distance(query, float(found[0][0, -1]), float(error))
        seen = (distances.size == part.ntotal for (distances, _), part in zip(near, self._parts, strict=True))
        if all(whole or distances[0, -1] > radius for (distances, _), whole in zip(near, seen, strict=True)):
            return found
        inside = [rows for _, _, rows in self._in_parts(lambda part: part.range_search(asked, radius))]
        if sum(map(len, inside)) > len(self) // MOST_OF_ALL:
            self._failed += 1
            return None
        return compare(self._with_unusual(inside))

    def _in_parts(self, search: Callable[[Any], Any]) -> list[Any]:
        """What a search finds in each part, by a thread for each."""
        found: list[Any] = [None] * len(self._parts)

        def work(number: int) -> None:
            found[number] = search(self._parts[number])

        others = [threading.Thread(target=work, args=(number,)) for number in range(1, len(found))]
        for thread in others:
            thread.start()
        work(0)
        for thread in others:
            thread.join()
        return found

    def _largest_distance(self, query: NDArray[np.float32], worst: float, error: float) -> float:
        """The squared distance of codes that no row with a similarity of `worst` or more exceeds."""
        length = float(np.vdot(query, query))
        worst -= (self._dim + 8) * ROUNDING * (self._longest + length)  # similarities are rounded
        farthest = np.sqrt(max(self._longest + length - 2 * worst, 0.0)) + self._error + error
        return float((farthest / self._step) ** 2 * (1 + 1e-5) + 1)  # as are distances

    def _with_unusual(self, rows: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
        """Rows of each part as rows of all, and the unusual ones, in order."""
        found = [one + start for one, start in zip(rows, self._starts, strict=False)]
        return np.unique(np.concatenate([*found, self._unusual]))

    def _encode(self, x: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Codes (n, width), 128 for 0, and a bound of the error of each row."""
        signed = np.clip(np.rint(x / np.float32(self._step)), -LARGEST, LARGEST)
        rest = x - signed * np.float32(self._step)
        error = np.sqrt(np.einsum("nd,nd->n", rest, rest, dtype=np.float64)) * (1 + 1e-6) + self._dim * ROUNDING
        codes = np.full((len(x), self._width), 128, np.uint8)
        codes[:, : self._dim] = signed + np.float32(128)
        return codes, error


def can_have_bytes(vectors: MappedVectors) -> bool:
    """Whether bytes are worth their memory, and the kernel that compares few rows compares all."""
    count, dim = vectors.shape
    return FEWEST <= count <= ONE_THREAD // dim


def _blocks(vectors: MappedVectors, start: int, stop: int) -> Iterator[NDArray[np.float32]]:
    for at in range(start, stop, ROWS_AT_ONCE):
        yield vectors[at : min(at + ROWS_AT_ONCE, stop)]
