"""A threshold that follows λ, beyond the paper: `Metrix(loss, target="interpolated")`.

The threshold m of a loss tells positives from negatives: a positive below it is drawn to the anchor, a negative above
it is pushed away. A mixed example has the same m, whatever its label Y. But let positives have similarity p to the
anchor, and negatives n to the anchor and to its positives. Then their mixture has the similarity

    t(Y) = (Y p + (1-Y) n) / √(1 - 2 Y (1-Y) (1-n))

and any other threshold moves it away from where clean examples are at rest. The interpolated target gives each mixed
example the threshold t(Y): it is the generic loss of S - (t(Y) - m).

The root is the norm of the mixture, and 1 for embeddings that are mixed but not renormalised.

For `anc-neg` p is 1, since the anchor takes the place of the positive; `pos-pos` pairs have Y = 1 and the threshold p,
`neg-neg` pairs Y = 0 and the threshold n.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

from torch import Tensor

from metrix.core.generic import Row, Totals, Weights
from metrix.core.loss import Loss
from metrix.core.pairs import PairKind
from metrix.errors import InvalidInput, check_name, check_number

TARGETS = ("paper", "interpolated")


@dataclass(frozen=True)
class InterpolatedTarget:
    """t(Y) from the similarities of positives and negatives to an anchor when the clean loss is at rest.

    Args:
        pos: p, of positives.
        neg: n, of negatives.
        normalise: whether mixed embeddings have unit norm.

    >>> import torch
    >>> InterpolatedTarget(0.9, 0.5)(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.5000, 0.8083, 0.9000])
    """

    pos: float = 0.9
    neg: float = 0.5
    normalise: bool = True

    def __post_init__(self) -> None:
        pos, neg = check_number("target_pos", self.pos), check_number("target_neg", self.neg)
        if not -1.0 < neg < pos <= 1.0:
            raise InvalidInput(
                f"target_pos, target_neg: expected -1 < target_neg < target_pos ≤ 1, got {self.pos!r}, {self.neg!r}"
            )

    def for_mixture(self, kind: PairKind, normalise: bool) -> InterpolatedTarget:
        """The target of a kind of mixing pairs, and of mixed embeddings with unit norm or without."""
        return InterpolatedTarget(1.0 if kind.with_anchor else self.pos, self.neg, normalise)

    def __call__(self, Y: Tensor) -> Tensor:
        """t(Y), of the shape of Y."""
        product = self.neg + (self.pos - self.neg) * Y
        return product / (1.0 - 2.0 * (1.0 - self.neg) * Y * (1.0 - Y)).sqrt() if self.normalise else product


def build_target(name: str, loss: Loss, pos: float, neg: float) -> InterpolatedTarget | None:
    """The target with this name; None for the paper's.

    Raises:
        InvalidInput: the loss has no threshold, or p and n are out of order.
    """
    if check_name("target", name, TARGETS) == "paper":
        return None
    if loss.threshold is None:
        raise InvalidInput(
            "target='interpolated': expected a loss that compares similarities with a threshold (contrastive, binomial "
            f"deviance, multi-similarity, proxy anchor), got {type(loss).__name__}, which has none; use target='paper'"
        )
    target = InterpolatedTarget(pos, neg)
    return replace(target, pos=float(target.pos), neg=float(target.neg))


def move_threshold(loss: Loss, target: InterpolatedTarget) -> Loss:
    """A copy of the loss, sharing its parameters, with the threshold t(Y) in place of m."""
    m, reduce = loss.threshold, loss.reduce
    assert m is not None, "build_target refuses such a loss"

    def reduce_shifted(row: Row, S: Tensor, w: Weights) -> Totals:
        return reduce(row, S - (target(w.pos) - m), w)  # w.pos is Y where a candidate counts

    moved = copy.copy(loss)
    moved.row, moved.reduce = loss.threshold_row, reduce_shifted
    return moved
