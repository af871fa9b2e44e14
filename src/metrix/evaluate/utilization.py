"""Utilization: how near a test example is to what training saw, clean or mixed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, ShapeError
from metrix.evaluate.bootstrap import numpy_generator
from metrix.evaluate.estimate import Estimate
from metrix.evaluate.ranks import float32_slack, split_rows, threads
from metrix.evaluate.vectors import Vectors

if TYPE_CHECKING:
    import torch

QUERIES_AT_ONCE = 4096
EXAMPLES_AT_ONCE = 4096
MEASURED_AT_MOST = 64  # near-ties of one query and block past which a float64 product is cheaper


def utilization(
    queries: object,
    train: object,
    mixed: object = None,
    *,
    max_queries: int | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """u(Q, X) = 1/|Q| Σ_{q in Q} min_{x in X} ‖f(q) - f(x)‖², on unit embeddings; lower is better.

    With `mixed`, X is X̂ = clean + mixed. `mixed` is an array (m, d) or an iterable of such arrays, as
    `mixed_embeddings` gives; each block is forgotten after it was measured. With more than `max_queries`
    queries, that many are drawn at random and the result states its standard error.

    >>> clean = [[1.0, 0.0], [0.0, 1.0]]
    >>> float(utilization([[1.0, 1.0]], clean, mixed=[[2.0, 2.0]]))
    0.0
    """
    asked, known = Vectors.read(queries, "queries"), Vectors.read(train, "train embeddings")
    if max_queries is not None and max_queries < 2:
        raise InvalidInput(f"max_queries={max_queries}: accepted is at least 2, or None for all queries")
    total, sampled = len(asked), None
    if max_queries is not None and total > max_queries:
        rows = np.sort(numpy_generator(generator).choice(total, size=max_queries, replace=False))
        asked, sampled = Vectors(asked.values[rows], asked.norms[rows]), max_queries
    nearest = _Nearest(asked)
    nearest.update(known, "train embeddings")
    for block in _blocks(mixed):
        nearest.update(Vectors.read(block, "mixed embeddings"), "mixed embeddings")
    mean = float(nearest.squared.mean())
    if sampled is None:
        return Estimate(mean)
    error = float(nearest.squared.std(ddof=1)) / math.sqrt(sampled) * math.sqrt(1 - sampled / total)
    return Estimate(mean, standard_error=error, sampled=sampled)


def _blocks(mixed: Any) -> Iterable[Any]:
    """One array as one block; an iterable of arrays as it is."""
    if mixed is None:
        return ()
    if hasattr(mixed, "ndim"):
        return (mixed,) if len(mixed) else ()
    if isinstance(mixed, list | tuple) and mixed and not hasattr(mixed[0], "ndim"):
        return (mixed,)  # nested lists of numbers
    if not isinstance(mixed, Iterable):
        raise InvalidInput(
            f"mixed of type {type(mixed).__name__}: accepted are an array (m, d) and an iterable of arrays"
        )
    return mixed


class _Nearest:
    """The squared distance of each query to the nearest example seen so far.

    Candidates come from a float32 product and are measured in float64, so the result is that of float64
    at the price of float32.
    """

    def __init__(self, queries: Vectors) -> None:
        self.queries = queries
        self.squared: NDArray[np.float64] = np.full(len(queries), np.inf)
        self.unit = queries.unit32()
        self.buffer = np.empty((min(QUERIES_AT_ONCE, len(queries)), EXAMPLES_AT_ONCE), dtype=np.float32)

    def update(self, examples: Vectors, name: str) -> None:
        """Take in more examples."""
        if examples.dim != self.queries.dim:
            raise ShapeError(
                f"queries of {self.queries.dim} columns and {name} of {examples.dim}: both come from one "
                "model and have the same number"
            )
        with ThreadPoolExecutor(threads()) as pool:
            for columns in examples.blocks(EXAMPLES_AT_ONCE):
                self._update_block(examples.part(columns), pool)

    def _update_block(self, examples: Vectors, pool: ThreadPoolExecutor) -> None:
        from metrix.evaluate.counting import nearest

        unit = examples.unit(slice(None), np.float32)
        for rows in self.queries.blocks(QUERIES_AT_ONCE):
            queries, squared = self.queries.part(rows), self.squared[rows]
            S = self.buffer[: len(queries)].reshape(-1)[: len(queries) * len(unit)]
            S = S.reshape(len(queries), len(unit))
            np.matmul(self.unit[rows], unit.T, out=S)
            crowded = np.zeros(len(queries), dtype=np.bool_)

            def measure(
                part: slice,
                S: NDArray[np.float32] = S,
                queries: Vectors = queries,
                squared: NDArray[np.float64] = squared,
                crowded: NDArray[np.bool_] = crowded,
            ) -> None:
                nearest(
                    S[part],
                    float32_slack(examples.dim),
                    queries.values[part],
                    queries.norms[part],
                    examples.values,
                    examples.norms,
                    MEASURED_AT_MOST,
                    squared[part],
                    crowded[part],
                )

            list(pool.map(measure, split_rows(len(queries), threads())))
            if crowded.any():
                x = queries.unit(np.flatnonzero(crowded))
                y = examples.unit(slice(None))
                gap = x - y[np.argmax(x @ y.T, axis=1)]
                squared[crowded] = np.minimum(squared[crowded], np.einsum("nd,nd->n", gap, gap))
