"""Alignment and uniformity: how tight the classes are, and how evenly the embeddings cover the sphere.

Both are computed on unit embeddings in float64; lower is better.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from metrix.errors import InvalidInput, LabelError, ShapeError
from metrix.evaluate.bootstrap import numpy_generator
from metrix.evaluate.estimate import Estimate
from metrix.evaluate.vectors import Vectors, number_classes, read_labels

if TYPE_CHECKING:
    import torch

COLUMNS_AT_ONCE = 32
ROWS_AT_ONCE = 1024


def alignment(embeddings: object, labels: object) -> float:
    """Mean of ‖x - x'‖² over all pairs of distinct examples x, x' of the same class; lower is better.

    Exact in one pass over the data: with μ the mean of a class of n examples, the sum over its pairs is
    n Σ ‖x - μ‖². An example that is alone in its class forms no pair.

    Args:
        embeddings: (n, d), normalised here.
        labels: the class of each.

    Raises:
        LabelError: if no class has two examples.

    >>> round(alignment([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]], [0, 0, 1]), 12)
    2.0
    """
    vectors = Vectors.read(embeddings)
    _, (number,) = number_classes(read_labels(labels, len(vectors)))
    sizes = np.bincount(number)
    pairs = int((sizes * (sizes - 1) // 2).sum())
    if pairs == 0:
        raise LabelError(
            f"no class has two of the {len(vectors)} examples: alignment is a mean over pairs within a class"
        )
    total = 0.0
    order = np.argsort(number, kind="stable")
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    members, norms = number[order], vectors.norms[order, None]
    for start in range(0, vectors.dim, COLUMNS_AT_ONCE):
        x = vectors.values[order, start : start + COLUMNS_AT_ONCE] / norms
        centres = np.add.reduceat(x, first, axis=0) / sizes[:, None]
        x -= centres[members]
        total += float(sizes[members] @ np.einsum("nd,nd->n", x, x))
    return total / pairs


def uniformity(
    embeddings: object,
    t: float = 2.0,
    *,
    max_pairs: int | None = None,
    generator: torch.Generator | None = None,
) -> Estimate:
    """log of the mean of exp(-t ‖x - x'‖²) over all pairs of distinct examples x, x'; lower is better.

    Examples are distinct by row number: two copies of one vector are a pair at distance 0.

    Args:
        embeddings: (n, d), normalised here.
        t: the scale; 2 is usual.
        max_pairs: if there are more pairs, use this many, drawn at random with replacement.
        generator: source of randomness for the draw; without one, results repeat.

    Returns:
        A float with a `standard_error`, which is 0 unless pairs were drawn.

    >>> float(uniformity([[1.0, 0.0], [-1.0, 0.0]]))        # the one pair is at squared distance 4
    -8.0
    """
    if not (math.isfinite(t) and t > 0):
        raise InvalidInput(f"t: expected a finite number > 0, such as 2, got {t}")
    if max_pairs is not None and max_pairs < 2:
        raise InvalidInput(f"max_pairs: expected an integer ≥ 2, or None for all pairs, got {max_pairs}")
    vectors = Vectors.read(embeddings)
    count = len(vectors)
    if count < 2:
        raise ShapeError("embeddings: expected at least two embeddings, since uniformity is a mean over pairs, got 1")
    pairs = count * (count - 1) // 2
    if max_pairs is not None and pairs > max_pairs:
        return _sampled_uniformity(vectors, t, max_pairs, numpy_generator(generator))
    from scipy.special import logsumexp

    # Each block is summed in place around its largest term, which is ten times faster than logsumexp of the block.
    largest, totals = [], []
    for rows in vectors.blocks(ROWS_AT_ONCE):
        x = vectors.unit(rows)
        for columns in vectors.blocks(ROWS_AT_ONCE):
            if columns.start < rows.start:
                continue  # the mirror image of a block already taken
            exponents = x @ vectors.unit(columns).T
            exponents -= 1.0
            exponents *= 2.0 * t  # -t ‖x-x'‖² = 2t (s - 1)
            if rows == columns:
                exponents = exponents[np.triu_indices(len(x), k=1)]
            if exponents.size:  # a block of one row has no pairs with itself
                largest.append(exponents.max())
                exponents -= largest[-1]
                totals.append(np.exp(exponents, out=exponents).sum())
    return Estimate(float(logsumexp(largest, b=totals)) - math.log(pairs))


def _sampled_uniformity(vectors: Vectors, t: float, draws: int, rng: np.random.Generator) -> Estimate:
    """The same over pairs drawn with replacement; the error of the log is the relative error of the mean."""
    from scipy.special import logsumexp

    exponents = np.empty(draws)
    for start in range(0, draws, ROWS_AT_ONCE):
        part = slice(start, min(start + ROWS_AT_ONCE, draws))
        left = rng.integers(len(vectors), size=part.stop - part.start)
        right = (left + rng.integers(1, len(vectors), size=len(left))) % len(vectors)
        gap = vectors.unit(left) - vectors.unit(right)
        exponents[part] = -t * np.einsum("nd,nd->n", gap, gap)
    log_mean = float(logsumexp(exponents)) - math.log(draws)
    ratios = np.exp(exponents - log_mean)  # to the mean
    return Estimate(log_mean, standard_error=float(ratios.std(ddof=1)) / math.sqrt(draws), sampled=draws)
