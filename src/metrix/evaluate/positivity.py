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


class AnchorLoss(Protocol):
    """What positivity needs from a loss: eq. loss-labels for each anchor, differentiable in S."""

    def rows(self, S: Tensor, Y: Tensor, valid: Tensor, /) -> Tensor:
        """The loss (anchors,) of similarities, labels and mask (anchors, candidates)."""


@dataclass(frozen=True, eq=False)
class Positivity:
    """P(Pos(a,v)) against λ.

    A value is NaN where it is unknown: `empirical` and `zero` where the loss is undefined, such as the log of an empty
    sum at λ = 0 or 1; `theoretical` for a loss that eq. prob does not hold for.
    """

    lams: NDArray[np.float64]
    empirical: NDArray[np.float64]  # fraction of derivatives ≤ 0
    theoretical: NDArray[np.float64]  # eq. prob
    zero: NDArray[np.float64]  # fraction of derivatives that are exactly 0, as in the flat part of a hinge
    similarities: int  # number of (a, v) at each λ

    def to_csv(self, path: str | Path) -> None:
        """Write the columns lam, empirical, theoretical, zero; NaN is an empty cell."""
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["lam", "empirical", "theoretical", "zero"])
            for row in zip(self.lams, self.empirical, self.theoretical, self.zero, strict=True):
                writer.writerow(["" if math.isnan(value) else repr(float(value)) for value in row])


def positivity(
    embeddings: object,
    labels: object,
    lams: Sequence[float] | NDArray[np.float64],
    loss: AnchorLoss,
    *,
    batch_size: int = 100,
    per_class: int = 5,
    lam_per: str = "pair",
    renormalise: bool = True,
    generator: torch.Generator | None = None,
) -> Positivity:
    """How often a mixed example acts as a positive, P(∂loss(a)/∂s(a,v) ≤ 0), against λ: measured and by eq. prob.

    The examples are divided into batches. In each, all positive-negative pairs of every anchor are mixed (embedding
    mixup) at every λ. The theoretical curve is F_λ( ln(λ/(1-λ)) / (β+γ) + m ), with F_λ the distribution of the same
    similarities s(a,v); it is 0 at λ = 0 and 1 at λ = 1.

    Args:
        embeddings: (n, d), normalised here.
        labels: the class of each.
        lams: interpolation factors in [0, 1].
        loss: a loss of `metrix.losses`, or any object with `rows(S, Y, valid)`. The theoretical curve is given for
            losses with `beta`, `gamma` and `margin` whose derivative changes sign at the threshold of eq. prob, such
            as multi-similarity.
        batch_size: examples of a batch.
        per_class: examples of a class that are put into a batch together.
        lam_per: `"pair"` gives the pairs of an anchor different λ at the same time, as training draws them (eq.
            mixing), so that a pair's own λ decides. `"batch"` gives all pairs the same λ, which cancels out of the
            derivative of multi-similarity where there are many pairs: the curve is flat between its ends.
        renormalise: whether mixed embeddings are normalised.
        generator: source of randomness for the batches; without one, results repeat.

    Raises:
        LabelError: if no batch has an anchor with a positive and a negative.

    >>> import torch, metrix
    >>> x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    >>> found = positivity(x, [0, 1, 2, 3] * 10, [0.0, 0.5, 1.0], metrix.losses.MultiSimilarity())
    >>> found.empirical[[0, -1]].tolist(), found.theoretical[[0, -1]].tolist()
    ([0.0, 1.0], [0.0, 1.0])
    """
    import torch

    from metrix.core.comparison import pick
    from metrix.core.pairs import PAIR_KINDS, mixing_pairs, plan_pairs
    from metrix.core.sets import Sets

    given = np.atleast_1d(np.asarray(lams, dtype=np.float64))
    if given.ndim != 1 or given.size == 0 or not ((given >= 0) & (given <= 1)).all():
        raise InvalidInput(f"lams: expected at least one number in [0, 1], got {lams!r}")
    if lam_per not in ("pair", "batch"):
        raise unknown_choice("lam_per", lam_per, ("pair", "batch"))
    if not callable(getattr(loss, "rows", None)):
        raise InvalidInput(
            f"loss: expected a loss of metrix.losses, got {type(loss).__name__}, which has no rows(S, Y, valid)"
        )
    if per_class < 2 or batch_size <= per_class:
        raise InvalidInput(
            "expected per_class ≥ 2 and batch_size > per_class, since an anchor needs a positive and a negative, "
            f"got per_class={per_class}, batch_size={batch_size}"
        )
    vectors = Vectors.read(embeddings)
    _, (number,) = number_classes(read_labels(labels, len(vectors)))
    rng = numpy_generator(generator)
    points, threshold = torch.from_numpy(given), torch.tensor([_threshold(lam, loss) for lam in given])

    tally = _Tally(len(given))
    for rows in _batches(number, batch_size, per_class, rng):
        sets = Sets.of_examples(torch.from_numpy(vectors.unit(rows)), torch.from_numpy(number[rows]))
        kind, G = PAIR_KINDS["pos-neg"], sets.similarity
        blocks = [
            (mixing_pairs(kind, plan._replace(places=None), sets, None, G), pick(G, plan.rows))
            for plan in plan_pairs(kind, sets, hardest=None)
        ]
        first = torch.zeros(len(rows), len(rows), dtype=torch.int64)  # (i, j) which λ comes first
        if lam_per == "pair":
            first = torch.from_numpy(rng.integers(len(given), size=first.shape))
        for (pairs, A), turn in product(blocks, range(len(given))):
            point = pairs.of_pair((first + turn) % len(given))  # (anchors, positives, negatives)
            S = _similarities(pairs, G, A, points[point], renormalise).flatten(1)
            valid, point = pairs.valid.expand_as(point).flatten(1), point.flatten(1)  # (anchors, pairs)
            slope = _slope(loss, S, points[point], valid)
            defined = valid & _defined(loss, points[point], valid)[:, None]
            tally.add(point, valid, defined, slope, threshold[point] >= S)
    if tally.pairs.sum() == 0:
        raise LabelError(
            "no batch has an anchor with a positive and a negative: positivity needs two classes, one of "
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


def _similarities(pairs: MixingPairs, G: Tensor, A: Tensor, lam: Tensor, renormalise: bool) -> Tensor:
    """s(a,v) (anchors, positives, negatives) from similarities G of the batch and A of the anchors."""
    from metrix.core.closed_form import inverse_norms, mixed_similarity

    norms = inverse_norms(pairs.of_pair(G), lam) if renormalise else None
    return mixed_similarity(pairs.of_left(A, None), pairs.of_right(A), lam, norms)


def _slope(loss: AnchorLoss, S: Tensor, Y: Tensor, valid: Tensor) -> Tensor:
    """∂loss(a)/∂s(a,v) in float64; in float32, e^{75 s} of a distant pair is 0 and would count as positive."""
    import torch

    S = S.detach().requires_grad_(True)
    (slope,) = torch.autograd.grad(loss.rows(S, Y, valid).sum(), S)
    if not torch.isfinite(slope[valid]).all():
        raise InvalidInput(
            f"the derivative of {type(loss).__name__} is not finite for some λ from {float(Y.min())} to "
            f"{float(Y.max())}; try without 0 and 1"
        )
    return slope.detach()


def _defined(loss: Any, Y: Tensor, valid: Tensor) -> Tensor:
    """Anchors (anchors,) whose loss is defined: a log Σ needs a positive, or a negative, to sum over."""
    row = getattr(loss, "row", None)
    defined = valid.any(1)
    if getattr(row, "needs_positive", False):
        defined = defined & ((Y > 0) & valid).any(1)
    if getattr(row, "needs_negative", False):
        defined = defined & ((Y < 1) & valid).any(1)
    return defined


def _threshold(lam: float, loss: Any) -> float:
    """ln(λ/(1-λ)) / (β+γ) + m, or NaN if the loss of one mixed pair has no minimum there."""
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


def _turns_at(s: float, lam: float, loss: AnchorLoss) -> bool:
    """Whether the loss of one mixed pair decreases before similarity s and increases after it."""
    import torch

    S = torch.tensor([[s - 1e-6], [s + 1e-6]], dtype=torch.float64)
    before, after = _slope(loss, S, torch.full_like(S, lam), torch.ones_like(S, dtype=torch.bool)).flatten().tolist()
    return bool(before < 0 < after)
