"""What the baselines share: pairs and distances of a batch, and a zero loss for a batch without usable anchors."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from metrix.core.compute.derivatives import without_autocast
from metrix.core.similarity import gram
from metrix.core.tensors import as_tensor
from metrix.core.validation import check_labels, refuse_indices, unit, values_are_at_hand, warn_unusable


class Baseline(nn.Module):
    """Base class of the baselines; `loss(embeddings, labels)` is the loss of a batch."""

    not_generic: str  # why it has no form for mixed examples
    needs = "a positive and a negative"  # what makes an anchor usable
    sort = "none"  # by which mixing methods know a loss
    of_one_dim = False  # whether it takes embeddings of one dimension only, and no prefixes of them
    _shown: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self._warned = False

    def forward(self, embeddings: Tensor, labels: Tensor, indices_tuple: None = None) -> Tensor:
        """The loss; embeddings (n, d) need not be normalised."""
        refuse_indices(indices_tuple, "these losses bring their own mining")
        embeddings = as_tensor("embeddings", embeddings)
        with without_autocast(embeddings):
            x = unit(embeddings)
            return self.of_vectors(x, self.labels(labels, x))

    def of_vectors(self, x: Tensor, labels: Tensor) -> Tensor:
        """The loss of vectors as they are; zero, with a warning once, if the batch has none of its terms.

        Labels are on the host or beside the vectors.
        """
        value, usable = self.of_unit(x, labels)
        if values_are_at_hand(value) and not bool(usable):
            if not self._warned:
                warn_unusable(self, len(x), self.needs)
            self._warned = True
            value = sum((t.sum() * 0.0 for t in (x, *self.parameters())), value * 0.0)
        return value

    def of_unit(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of unit embeddings, and how many of its terms the batch has, zero or not."""
        raise NotImplementedError

    def labels(self, labels: Tensor, x: Tensor) -> Tensor:
        """The labels, which must fit the loss."""
        return check_labels(labels, x)

    def extra_repr(self) -> str:
        """The public parameters."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._shown)


class LabelPairs(NamedTuple):
    """Positive and negative pairs of a batch: (n, n), bool."""

    positive: Tensor
    negative: Tensor

    @property
    def usable(self) -> Tensor:
        """How many anchors have both a positive and a negative."""
        return (self.positive.any(1) & self.negative.any(1)).sum()


def pairs_of(labels: Tensor, x: Tensor) -> LabelPairs:
    """Who is positive and who is negative to whom, beside the vectors x; nobody is positive to itself."""
    labels = labels.to(x.device)
    same = labels.unsqueeze(1) == labels.unsqueeze(0)
    return LabelPairs(same.clone().fill_diagonal_(False), ~same)


def distances(x: Tensor) -> Tensor:
    """Euclidean distances (n, n) of unit vectors: √(2 - 2s).

    The root has no derivative at zero: equal vectors are at distance 0 with gradient 0.
    """
    squared = 2.0 - 2.0 * gram(x)
    apart = squared > 8.0 * torch.finfo(x.dtype).eps
    return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)
