"""Triplet loss with semi-hard negatives, without ever forming a triplet."""

from __future__ import annotations

import torch
from torch import Tensor

from metrix.core.baselines.base import Baseline, LabelPairs, distances, pairs_of
from metrix.core.settings import check_scale
from metrix.errors import check_name

MINING = ("semi-hard", "all")


class Triplet(Baseline):
    """Triplet loss: the mean of [D_ap - D_an + m]₊ over the triplets that are mined and not zero.

    mining="semi-hard" takes every negative with D_ap < D_an < D_ap + m: farther than the positive, yet
    within the margin. A positive pair without one has no part in the loss. mining="all" takes every
    triplet with D_an < D_ap + m. No triplet is ever formed: the loss is linear in the distances, so it is
    enough to count in how many triplets each pair is, which takes n² memory and n² log n time.

    Args:
        margin: m.
        mining: "semi-hard" or "all".

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> Triplet()(embeddings, labels).backward()
    """

    not_generic = (
        "it compares a positive with a negative of the same anchor, so it is no sum over positives plus a sum "
        "over negatives; losses.LiftedStructure, whose outer hinge is the nearest relative, can be"
    )
    _shown = ("margin", "mining")

    def __init__(self, margin: float = 0.2, mining: str = "semi-hard") -> None:
        super().__init__()
        self.margin, self.mining = check_scale("margin", margin), check_name("mining", mining, MINING)

    def of_unit(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Σ (D_ap - D_an + m) as Σ c_ap D_ap - Σ c_an D_an + m · triplets, with the counts c of each pair."""
        pairs, D = pairs_of(labels, x), distances(x)
        counts = triplet_counts(D.detach(), pairs, self.margin, self.mining == "semi-hard")
        signed = torch.where(pairs.positive, counts, -counts).to(D.dtype)
        triplets = (counts * pairs.positive).sum().to(D.dtype)
        return ((signed * D).sum() + self.margin * triplets) / triplets.clamp_min(1.0), pairs.usable


def triplet_counts(D: Tensor, pairs: LabelPairs, margin: float, semi_hard: bool) -> Tensor:
    """In how many triplets each pair (anchor, other) is, as its positive or as its negative: (n, n), int64.

    With the negatives of an anchor in order of distance, those of a positive are a range [first, end).
    """
    n = len(D)
    ordered, order = torch.where(pairs.negative, D, torch.inf).sort(1)
    end = torch.searchsorted(ordered, D + margin)  # so many are nearer than D_ap + m
    first = torch.searchsorted(ordered, D, right=True) if semi_hard else torch.zeros_like(end)  # not beyond D_ap
    as_positive = (end - first) * pairs.positive
    step = pairs.positive.to(torch.int64)
    changes = torch.zeros(n, n + 1, dtype=torch.int64, device=D.device)
    changes.scatter_add_(1, first, step).scatter_add_(1, end, -step)
    as_negative = torch.zeros_like(as_positive).scatter_(1, order, changes.cumsum(1)[:, :n])
    return as_positive + as_negative
