"""Positivity: when does a mixed example act as a positive? (section Analysis, eq. prob)

A mixed embedding v = λ p + (1-λ) n of a positive and a negative of anchor a is positive, Pos(a,v), if
minimising the loss pulls it closer: ∂loss(a) / ∂s(a,v) <= 0.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from metrix.errors import InvalidInput, LabelError, unknown_choice
from metrix.evaluate.bootstrap import numpy_generator
from metrix.evaluate.vectors import Vectors, number_classes, read_labels

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from metrix.core.pairs import MixingPairs


class Loss(Protocol):
    """What positivity needs of a loss: eq. loss-labels by anchor, differentiable in S."""

    def rows(self, S: Tensor, Y: Tensor, valid: Tensor, /) -> Tensor:
        """The loss (anchors,) of similarities, labels and mask (anchors, candidates)."""


@dataclass(frozen=True, eq=False)
class Positivity:
    """P(Pos(a,v)) against λ.

    `empirical` counts derivatives <= 0; `zero` is the part of it where the derivative is exactly 0, as
    in the flat part of a hinge. It is NaN where the loss is undefined, as a log Σ of nothing at λ=0 or 1.
    `theoretical` is eq. prob, NaN for a loss it does not hold for.
    `similarities` is how many (a, v) each point is measured on.
    """

    lams: NDArray[np.float64]
    empirical: NDArray[np.float64]
    theoretical: NDArray[np.float64]
    zero: NDArray[np.float64]
    similarities: int

    def to_csv(self, path: str | Path) -> None:
        """Write columns lam, empirical, theoretical, zero; an unknown value is an empty cell."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["lam", "empirical", "theoretical", "zero"])
            for row in zip(self.lams, self.empirical, self.theoretical, self.zero, strict=True):
                writer.writerow(["" if math.isnan(value) else repr(float(value)) for value in row])


def positivity(
    embeddings: object,
    labels: object,
    lams: Sequence[float] | NDArray[np.float64],
    loss: Loss,
    *,
    batch_size: int = 100,
    per_class: int = 5,
    lam_per: str = "pair",
    renormalise: bool = True,
    generator: torch.Generator | None = None,
) -> Positivity:
    """P(Pos(a,v)) = P(∂loss(a)/∂s(a,v) <= 0), and F_λ( ln(λ/(1-λ)) / (β+γ) + m ) beside it (eq. prob).

    The dataset goes through batches of `batch_size`, `per_class` examples of a class together. In each,
    every anchor meets all its mixed positive-negative pairs (embedding mixup), each at every λ in turn.
    F_λ is the share of the same similarities s(a,v) up to the threshold. Its limits are those of the
    logarithm: 0 at λ=0, 1 at λ=1.

    `lam_per="pair"` gives the pairs of an anchor different λ at a time, as eq. mixing draws them in
    training: a pair's own λ then decides. `"batch"` gives all the same λ: with many pairs it cancels out
    of the derivative of multi-similarity, and the curve between the ends is flat.

    The theoretical curve needs `loss.beta, loss.gamma, loss.margin` and is given where one mixed pair
    turns at that threshold, as it does in multi-similarity.
    """
    import torch

    from metrix.core.pairs import PAIR_KINDS, mixing_pairs
    from metrix.core.sets import Sets

    given = np.atleast_1d(np.asarray(lams, dtype=np.float64))
    if given.ndim != 1 or given.size == 0 or not ((given >= 0) & (given <= 1)).all():
        raise InvalidInput(f"lams={lams!r}: accepted is a list of at least one number in [0, 1]")
    if lam_per not in ("pair", "batch"):
        raise unknown_choice("lam_per", lam_per, ("pair", "batch"))
    if not callable(getattr(loss, "rows", None)):
        raise InvalidInput(
            f"loss of type {type(loss).__name__} has no rows(S, Y, valid): accepted is any of metrix.losses"
        )
    if per_class < 2 or batch_size <= per_class:
        raise InvalidInput(
            f"batch_size={batch_size}, per_class={per_class}: an anchor needs a positive and a negative, so "
            "per_class is at least 2 and batch_size is larger"
        )
    vectors = Vectors.read(embeddings)
    _, (number,) = number_classes(read_labels(labels, len(vectors)))
    rng = numpy_generator(generator)
    points, threshold = torch.from_numpy(given), torch.tensor([_threshold(lam, loss) for lam in given])

    tally = _Tally(len(given))
    for rows in _batches(number, batch_size, per_class, rng):
        sets = Sets.of_examples(torch.from_numpy(vectors.unit(rows)), torch.from_numpy(number[rows]))
        pairs = list(mixing_pairs(PAIR_KINDS["pos-neg"], sets, hardest=None, similarity=None))
        if not pairs:
            continue
        first = torch.zeros(len(rows), len(rows), dtype=torch.int64)  # (i, j) which λ comes first
        if lam_per == "pair":
            first = torch.from_numpy(rng.integers(len(given), size=first.shape))
        for block, turn in product(pairs, range(len(given))):
            point = block.of_pair((first + turn) % len(given))  # (anchors, positives, negatives)
            S = _similarities(block, sets.similarity, points[point], renormalise).flatten(1)
            valid, point = block.valid().expand_as(point).flatten(1), point.flatten(1)  # (anchors, pairs)
            slope = _slope(loss, S, points[point], valid)
            defined = valid & _defined(loss, points[point], valid)[:, None]
            tally.add(point, valid, defined, slope, threshold[point] >= S)
    if tally.pairs.sum() == 0:
        raise LabelError(
            "no batch holds an anchor with a positive and a negative: positivity needs two classes, one of "
            "them with two examples"
        )
    return tally.positivity(given, np.isnan(threshold.numpy()))


class _Tally:
    """Counts by λ: mixed pairs, those with a defined loss, derivative <= 0, = 0, s up to the threshold."""

    def __init__(self, points: int) -> None:
        self.pairs, self.defined, self.falling, self.flat, self.below = np.zeros((5, points))

    def add(self, point: Tensor, valid: Tensor, defined: Tensor, slope: Tensor, below: Tensor) -> None:
        for total, chosen in (
            (self.pairs, valid),
            (self.defined, defined),
            (self.falling, defined & (slope <= 0)),
            (self.flat, defined & (slope == 0)),
            (self.below, valid & below),
        ):
            total += point[chosen].bincount(minlength=len(total)).numpy()

    def positivity(self, lams: NDArray[np.float64], without_theory: NDArray[np.bool_]) -> Positivity:
        defined = np.where(self.defined > 0, self.defined, np.nan)
        theoretical = np.where(without_theory, np.nan, self.below / self.pairs)
        return Positivity(lams, self.falling / defined, theoretical, self.flat / defined, int(self.pairs[0]))


def _batches(
    number: NDArray[np.intp], batch_size: int, per_class: int, rng: np.random.Generator
) -> Iterator[NDArray[np.intp]]:
    """Every row once, examples of a class in groups of `per_class`, the groups in random order."""
    shuffled = rng.permutation(len(number))
    by_class = shuffled[np.argsort(number[shuffled], kind="stable")]
    first = np.concatenate([[0], np.cumsum(np.bincount(number))[:-1]])
    group = (np.arange(len(number)) - first[number[by_class]]) // per_class
    _, groups = np.unique(np.stack([number[by_class], group]), axis=1, return_inverse=True)
    groups = groups.reshape(-1)
    place = rng.permutation(groups.max() + 1)[groups]
    rows = by_class[np.argsort(place, kind="stable")]
    yield from np.array_split(rows, np.arange(batch_size, len(rows), batch_size))


def _similarities(pairs: MixingPairs, G: Tensor, lam: Tensor, renormalise: bool) -> Tensor:
    """s(a,v) (anchors, positives, negatives) from the similarities G of a batch and the λ of each pair."""
    from metrix.core.closed_form import inverse_norms, mixed_similarity

    norms = inverse_norms(pairs.of_pair(G), lam) if renormalise else None
    return mixed_similarity(pairs.of_left(G, None), pairs.of_right(G), lam, norms)


def _slope(loss: Loss, S: Tensor, Y: Tensor, valid: Tensor) -> Tensor:
    """∂loss(a)/∂s(a,v), in float64: e^{75 s} of a far pair is 0 in float32, and 0 would count as positive."""
    import torch

    S = S.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(loss.rows(S, Y, valid).sum(), S)
    if not torch.isfinite(slope[valid]).all():
        raise InvalidInput(
            f"the derivative of {type(loss).__name__} is not finite for some λ between {float(Y.min())} and "
            f"{float(Y.max())}: try without the ends 0 and 1"
        )
    return slope.detach()


def _defined(loss: Any, Y: Tensor, valid: Tensor) -> Tensor:
    """Anchors (anchors,) with a loss: a log Σ needs something positive, or something negative, to sum."""
    row = getattr(loss, "row", None)
    defined = valid.any(1)
    if getattr(row, "needs_positive", False):
        defined = defined & ((Y > 0) & valid).any(1)
    if getattr(row, "needs_negative", False):
        defined = defined & ((Y < 1) & valid).any(1)
    return defined


def _threshold(lam: float, loss: Any) -> float:
    """ln(λ/(1-λ)) / (β+γ) + m, or NaN for a loss whose single mixed pair does not turn there."""
    numbers = [getattr(loss, name, None) for name in ("beta", "gamma", "margin")]
    if not all(isinstance(value, int | float) for value in numbers):
        return math.nan
    beta, gamma, margin = (float(value) for value in numbers if value is not None)

    def at(lam: float) -> float:
        if lam in (0.0, 1.0):
            return math.copysign(math.inf, lam - 0.5)
        return math.log(lam / (1 - lam)) / (beta + gamma) + margin

    if not all(_turns_at(at(probe), probe, loss) for probe in (0.3, 0.8)):
        return math.nan
    return at(lam)


def _turns_at(s: float, lam: float, loss: Loss) -> bool:
    """Whether the loss of one mixed pair falls before similarity s and rises after it."""
    import torch

    S = torch.tensor([[s - 1e-6], [s + 1e-6]], dtype=torch.float64)
    before, after = _slope(loss, S, torch.full_like(S, lam), torch.ones_like(S, dtype=torch.bool)).flatten().tolist()
    return bool(before < 0 < after)
