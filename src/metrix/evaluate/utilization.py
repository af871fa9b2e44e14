"""Utilization: how near test examples are to the training examples, clean or mixed."""

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
from metrix.evaluate.ranks import float32_slack, split_rows, usable_cores
from metrix.evaluate.vectors import Vectors

if TYPE_CHECKING:
    import torch

QUERIES_AT_ONCE = 4096
EXAMPLES_AT_ONCE = 4096
MEASURED_AT_MOST = 64  # near-ties of a query in a block, beyond which one float64 product is cheaper


def utilization(
    queries: object,
    train: object,
    mixed: object = None,
    *,
    max_queries: int | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """u(Q, X) = 1/|Q| Σ_{q in Q} min_{x in X} ‖f(q) - f(x)‖² on unit embeddings; lower is better.

    Args:
        queries: embeddings Q (q, d) of the test examples.
        train: embeddings X (n, d) of the training examples.
        mixed: embeddings of mixed examples, which are added to X: an array (m, d), or an iterable of such arrays, as
            `mixed_embeddings` yields, of which one is held in memory at a time.
        max_queries: if there are more queries, use this many, drawn at random.
        generator: source of randomness for the draw; without one, results repeat.

    Returns:
        A float with a `standard_error`, which is 0 unless queries were drawn.

    >>> clean = [[1.0, 0.0], [0.0, 1.0]]
    >>> float(utilization([[1.0, 1.0]], clean, mixed=[[2.0, 2.0]]))
    0.0
    """
    asked, known = Vectors.read(queries, "queries"), Vectors.read(train, "train embeddings")
    if max_queries is not None and max_queries < 2:
        raise InvalidInput(f"max_queries: expected an integer ≥ 2, or None for all queries, got {max_queries}")
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
    """The blocks of mixed embeddings: a single array is one block."""
    if mixed is None:
        return ()
    if hasattr(mixed, "ndim"):
        return (mixed,) if len(mixed) else ()
    if isinstance(mixed, list | tuple) and mixed and not hasattr(mixed[0], "ndim"):
        return (mixed,)  # nested lists of numbers
    if not isinstance(mixed, Iterable):
        raise InvalidInput(f"mixed: expected an array (m, d) or an iterable of such arrays, got {type(mixed).__name__}")
    return mixed


class _Nearest:
    """The squared distance of each query to the nearest example seen so far.

    A float32 product finds the candidates, whose distances are then computed in float64: the accuracy of float64 at
    almost the cost of float32.
    """

    def __init__(self, queries: Vectors) -> None:
        self.queries = queries
        self.squared: NDArray[np.float64] = np.full(len(queries), np.inf)
        self.unit = queries.unit32()
        self.buffer = np.empty((min(QUERIES_AT_ONCE, len(queries)), EXAMPLES_AT_ONCE), dtype=np.float32)

    def update(self, examples: Vectors, name: str) -> None:
        """Lower the distances where one of these examples is nearer."""
        if examples.dim != self.queries.dim:
            raise ShapeError(
                f"queries of {self.queries.dim} columns and {name} of {examples.dim}: expected the same number, as "
                "embeddings of one model have"
            )
        with ThreadPoolExecutor(usable_cores()) as pool:
            for columns in examples.blocks(EXAMPLES_AT_ONCE):
                self._update_block(examples.part(columns), pool)

    def _update_block(self, examples: Vectors, pool: ThreadPoolExecutor) -> None:
        from metrix.evaluate.counting import lower_distances

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
                lower_distances(
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

            list(pool.map(measure, split_rows(len(queries), usable_cores())))
            if crowded.any():
                x = queries.unit(np.flatnonzero(crowded))
                y = examples.unit(slice(None))
                gap = x - y[np.argmax(x @ y.T, axis=1)]
                squared[crowded] = np.minimum(squared[crowded], np.einsum("nd,nd->n", gap, gap))
