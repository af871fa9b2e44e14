"""Margin loss with distance-weighted sampling."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from metrix.core.baselines.base import Baseline, LabelPairs, distances, pairs_of
from metrix.core.settings import check_generator, check_scale, make_room
from metrix.core.validation import at_least_float32, check_labels
from metrix.errors import InvalidInput, check_integer, check_number


class Margin(Baseline):
    """Margin loss with distance-weighted sampling and a learnable boundary β.

    (Σ [D_ap - β + m]₊ + Σ [β - D_an + m]₊) / the number of terms that are not zero. Every ordered positive
    pair counts once; an anchor draws as many negatives as it has positives, with replacement, with the
    weights of `distance_weights`. An anchor whose negatives are all farther than `farthest` draws none,
    and its positive pairs still count.

    Args:
        margin: m.
        beta: β at the start of training.
        num_classes: learn a β for each class (that of the anchor counts); None learns one β.
        nearest: negatives nearer than this are drawn as if they were at this distance.
        farthest: negatives from this distance on are not drawn.
        generator: of the draws; None is torch's default one.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> Margin()(embeddings, labels).backward()
    """

    not_generic = (
        "its negatives are drawn by their distance and its boundary β is that of the anchor's class, neither of "
        "which a mixed example has; losses.Contrastive is the nearest relative that can be"
    )
    needs = "a positive"
    _shown = ("margin", "nearest", "farthest")

    def __init__(
        self,
        margin: float = 0.2,
        beta: float = 1.2,
        num_classes: int | None = None,
        nearest: float = 0.5,
        farthest: float = 1.4,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_classes is not None:
            check_integer("num_classes", num_classes, least=1)
        self.nearest = check_number("nearest", nearest, above=0, most=2)
        self.farthest = check_number("farthest", farthest, above=0, most=2)
        if self.nearest >= self.farthest:
            raise InvalidInput(
                f"nearest, farthest: expected 0 < nearest < farthest ≤ 2, got {nearest!r} and {farthest!r}"
            )
        self.margin, self.generator = check_scale("margin", margin), check_generator(generator)
        self.beta = nn.Parameter(make_room(num_classes=num_classes or 1).fill_(check_scale("beta", beta)))

    def labels(self, labels: Tensor, x: Tensor) -> Tensor:
        """Labels checked against the classes that have a β."""
        return check_labels(labels, x, len(self.beta) if len(self.beta) > 1 else None, "classes with a β")

    def of_unit(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Both sums, over the number of terms that are not zero."""
        most = int(torch.unique(labels.cpu(), return_counts=True)[1].max()) - 1  # positives of an anchor
        labels = labels.to(x.device)
        pairs, D = pairs_of(labels, x), distances(x)
        beta = at_least_float32(self.beta).to(D.dtype)
        beta = (beta.index_select(0, labels) if len(beta) > 1 else beta).unsqueeze(1)  # (n, 1) or (1, 1)
        times = self.draws(D.detach(), pairs, x.shape[1], most)
        pos = torch.relu(D - beta + self.margin) * pairs.positive
        neg = torch.relu(beta - D + self.margin) * times
        nonzero = (pos > 0).sum() + (times * (neg > 0)).sum()
        return (pos.sum() + neg.sum()) / nonzero.clamp_min(1), pairs.positive.any(1).sum()

    def draws(self, D: Tensor, pairs: LabelPairs, dim: int, most: int) -> Tensor:
        """How many times each negative was drawn for each anchor, `most` times in all: (n, n), int64."""
        times = torch.zeros_like(pairs.negative, dtype=torch.int64)
        if most == 0:
            return times
        weights = distance_weights(D, pairs.negative, dim, self.nearest, self.farthest)
        drawable = weights.sum(1) > 0
        weights = weights.masked_fill(~drawable.unsqueeze(1), 1.0)  # what is drawn there does not count
        at = weights.device if self.generator is None else self.generator.device
        drawn = torch.multinomial(weights.to(at), most, replacement=True, generator=self.generator).to(D.device)
        wanted = pairs.positive.sum(1) * drawable
        counted = torch.arange(most, device=D.device) < wanted.unsqueeze(1)
        return times.scatter_add(1, drawn, counted.to(torch.int64))


def distance_weights(D: Tensor, negative: Tensor, dim: int, nearest: float, farthest: float) -> Tensor:
    """The probability of each negative to be drawn for each anchor: (n, n); a row without any is zero.

    In inverse proportion to how many vectors of a sphere in `dim` dimensions are at that distance, so
    that all distances are drawn alike: log w = (2 - d) log D - (d - 3)/2 log(1 - D²/4), with D at least
    `nearest` (nearer ones would make for noisy gradients), and 0 from `farthest` on (no loss is left there).
    """
    D = D.clamp_min(nearest)
    thinness = (1.0 - D.square() / 4.0).clamp_min(torch.finfo(D.dtype).eps)
    log_weights = (2.0 - dim) * D.log() - 0.5 * (dim - 3.0) * thinness.log()
    drawable = negative & (farthest > D)
    weights = torch.softmax(log_weights.masked_fill(~drawable, -torch.inf), dim=1)
    return torch.where(drawable, weights, 0.0)  # softmax of a row without any is NaN
