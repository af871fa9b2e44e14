"""Easy positive, semi-hard negative."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.baselines.base import Baseline, pairs_of
from metrix.core.settings import check_scale
from metrix.core.similarity import gram


class EPSHN(Baseline):
    """Easy positive, semi-hard negative: the mean over anchors of -log softmax([s_p, s_n]/T)₀.

    s_p is the most similar positive of an anchor, s_n its most similar negative below s_p. An anchor all
    of whose negatives are as similar as its positive or more has no s_n, and is left out.

    Args:
        temperature: T.

    >>> embeddings, labels = torch.randn(4, 8, requires_grad=True), torch.tensor([0, 0, 1, 1])
    >>> EPSHN()(embeddings, labels).backward()
    """

    not_generic = (
        "it chooses one positive and one negative of each anchor, and is no sum over all; losses.NCA is the "
        "nearest relative that can be"
    )
    _shown = ("temperature",)

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        self.temperature = check_scale("temperature", temperature)

    def of_unit(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """softplus((s_n - s_p)/T), which is the same."""
        pairs, S = pairs_of(labels, x), gram(x)
        s_pos = S.masked_fill(~pairs.positive, -torch.inf).amax(1)
        below = pairs.negative & (s_pos.unsqueeze(1) > S)
        s_neg = S.masked_fill(~below, -torch.inf).amax(1)
        rows = below.any(1)
        losses = F.softplus((s_neg - s_pos).masked_fill(~rows, 0.0) / self.temperature) * rows
        return losses.sum() / rows.sum().clamp_min(1), pairs.usable
