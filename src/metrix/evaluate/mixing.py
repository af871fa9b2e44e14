"""Mixed embeddings as a stream: the examples that training with mixup adds to the clean ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError
from metrix.evaluate.bootstrap import numpy_generator
from metrix.evaluate.vectors import Array, Vectors, number_classes, read_labels
from metrix.messages import count

if TYPE_CHECKING:
    import torch

    from metrix.core.pairs import PairKind, SideName


def mixed_embeddings(
    train: object,
    labels: object,
    epochs: int,
    alpha: float = 2.0,
    pairs: str | tuple[str, ...] = "pos-neg",
    generator: torch.Generator | None = None,
    *,
    renormalise: bool = True,
    rows_at_once: int = 4096,
) -> Iterator[Array]:
    """Embedding mixup of a fixed model over several epochs: v = λ f(x) + (1-λ) f(x') with λ ~ Beta(α, α).

    In each epoch every example is the anchor once, in random order, and one of its mixing pairs is drawn. Anchors
    without such a pair are skipped.

    Args:
        train: embeddings (n, d) of the training examples, normalised here.
        labels: the class of each.
        epochs: how often every example is the anchor.
        alpha: of the Beta distribution.
        pairs: `pos-neg`, `anc-neg`, `pos-pos` or `neg-neg`; of several, one is drawn for each block.
        generator: source of randomness; without one, results repeat.
        renormalise: whether mixed embeddings are normalised.
        rows_at_once: the number of anchors of a block.

    Returns:
        An iterator over blocks (m, d) of mixed embeddings, of the same type as `train`.

    Raises:
        LabelError: if no example has such a pair.

    >>> sum(len(block) for block in mixed_embeddings([[1.0, 0], [0, 1], [1, 1]], [0, 0, 1], epochs=10))
    20
    """
    from metrix.core.choices import find
    from metrix.core.pairs import PAIR_KINDS

    vectors = Vectors.read(train, "train embeddings")
    _, (number,) = number_classes(read_labels(labels, len(vectors)))
    chosen = (pairs,) if isinstance(pairs, str) else tuple(pairs)
    kinds = [find("pairs", name, PAIR_KINDS) for name in chosen]
    if not chosen or epochs < 1 or rows_at_once < 1 or not (math.isfinite(alpha) and alpha > 0):
        raise InvalidInput(
            "expected at least one kind of pairs, epochs ≥ 1, rows_at_once ≥ 1 and a finite alpha > 0, "
            f"got pairs={pairs!r}, epochs={epochs}, rows_at_once={rows_at_once}, alpha={alpha}"
        )
    sizes = np.bincount(number)
    num_pos, num_neg = sizes[number] - 1, len(number) - sizes[number]  # of each example as the anchor
    fitting = [kind.is_possible(num_pos, num_neg) for kind in kinds]  # which examples have such a pair
    if not any(rows.any() for rows in fitting):
        raise LabelError(
            f"no example has a pair {' or '.join(chosen)} in {count(len(sizes), 'class')} of at most {sizes.max()}: "
            "positives need a class of two, negatives a second class"
        )
    return _mix_blocks(
        vectors, number, sizes, epochs, alpha, kinds, fitting, numpy_generator(generator), renormalise, rows_at_once
    )


def _mix_blocks(
    vectors: Vectors,
    number: NDArray[np.intp],
    sizes: NDArray[np.intp],
    epochs: int,
    alpha: float,
    kinds: list[PairKind],
    fitting: list[NDArray[np.bool_]],
    rng: np.random.Generator,
    renormalise: bool,
    rows_at_once: int,
) -> Iterator[Array]:
    order = np.argsort(number, kind="stable")  # rows by class: each class is a slice of this
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def draw(side: SideName, anchors: NDArray[np.intp]) -> NDArray[np.intp]:
        begin, size = first[number[anchors]], sizes[number[anchors]]
        if side == "anc":
            return anchors
        if side == "pos":  # another example of the class
            step = rng.integers(1, size)
            at = begin + (place[anchors] - begin + step) % size
        else:  # an example outside the class, which the slice wraps around
            at = (begin + size + rng.integers(0, len(number) - size)) % len(number)
        drawn: NDArray[np.intp] = order[at]
        return drawn

    for _ in range(epochs):
        shuffled = rng.permutation(len(number))
        for start in range(0, len(shuffled), rows_at_once):
            which = rng.integers(len(kinds))
            anchors = shuffled[start : start + rows_at_once]
            anchors = anchors[fitting[which][anchors]]
            if len(anchors) == 0:
                continue
            left, right = draw(kinds[which].left, anchors), draw(kinds[which].right, anchors)
            lam = rng.beta(alpha, alpha, size=(len(anchors), 1))
            v = lam * vectors.unit(left) + (1 - lam) * vectors.unit(right)
            norms = np.linalg.norm(v, axis=1, keepdims=True)
            keep = norms[:, 0] > 0  # two opposite vectors cancel out at λ = 1/2
            v = v[keep] / norms[keep] if renormalise else v[keep]
            yield v.astype(vectors.values.dtype, copy=False)
