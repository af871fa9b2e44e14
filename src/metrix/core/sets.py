"""Anchors a, their positives P(a) and their negatives N(a).

Both follow from labels, so for a batch too large for matrices of all pairs they are formed for some anchors at a
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from metrix.core.compute.blocks import is_held, rows_in_block
from metrix.core.distributed.ranks import ALONE, Ranks, Share
from metrix.core.similarity import gram, rows_of_gram


@dataclass(frozen=True)
class Sets:
    """eq. pos and neg: P(a) are the candidates of the class of anchor a, without a itself; N(a) are all others.

    Each of several processes has its share of the anchors, with the candidates of all.
    """

    anchors: Tensor  # (anchors, d)  unit
    candidates: Tensor  # (candidates, d)  unit
    anchor_labels: Tensor  # (anchors,)
    candidate_labels: Tensor  # (candidates,)
    own: Tensor | None  # (anchors,)  which candidate is the anchor itself; None: anchors are no candidates
    examples: Tensor  # (n, d)  unit: the whole batch
    example_labels: Tensor  # (n,)
    share: Share | None = None  # which of all anchors these are; None: all
    ranks: Ranks = ALONE  # the processes whose anchors the loss is averaged over
    picked: bool = False  # whether anchors were picked from candidates as they now are

    @classmethod
    def of_examples(cls, embeddings: Tensor, labels: Tensor) -> Sets:
        """Every example of a batch is an anchor, and all others are its candidates.

        >>> sets = Sets.of_examples(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> sets.positive.tolist()
        [[False, True, False], [True, False, False], [False, False, False]]
        """
        numbers = torch.arange(len(labels), device=labels.device)
        return cls(embeddings, embeddings, labels, labels, numbers, embeddings, labels)

    @property
    def start(self) -> int:
        """The number of the first anchor among those of all processes."""
        return 0 if self.share is None else self.share.start

    @property
    def total(self) -> int:
        """The number of anchors of all processes."""
        return len(self.anchors) if self.share is None else self.share.of

    @cached_property
    def same(self) -> Tensor:
        """(anchors, candidates)  bool: of one class."""
        return self.anchor_labels.unsqueeze(1) == self.candidate_labels.unsqueeze(0)

    @cached_property
    def positive(self) -> Tensor:
        """(anchors, candidates)  bool: in P(a)."""
        return self.same if self.own is None else self.same.scatter(1, self.own.unsqueeze(1), False)

    @cached_property
    def negative(self) -> Tensor:
        """(anchors, candidates)  bool: in N(a)."""
        return ~self.same

    @cached_property
    def similarity(self) -> Tensor:
        """(anchors, candidates)  s(a, x), computed once for the clean and the mixed loss."""
        if self.anchors is self.candidates:
            return gram(self.anchors)
        if self.picked and self.own is not None:
            return rows_of_gram(self.candidates, self.own)
        return self.anchors @ self.candidates.T

    @property
    def tensors(self) -> tuple[Tensor | None, Tensor]:
        """Anchors, or None if they are among the candidates, and candidates: what `part` takes."""
        return (self.anchors if self.own is None else None), self.candidates

    def blocks(self) -> Sequence[Tensor | None]:
        """Anchors in blocks, by number; one None, for all anchors, where their similarities fit in memory."""
        anchors, candidates = len(self.anchors), len(self.candidates)
        if is_held(anchors, candidates, self.anchors):
            return [None]
        numbers = torch.arange(anchors, device=self.anchors.device)
        return torch.split(numbers, rows_in_block(candidates))

    def part(self, rows: Tensor | None, anchors: Tensor | None, candidates: Tensor) -> Sets:
        """Some anchors, by number, with all candidates; None stands for all anchors.

        `anchors` and `candidates` stand for those of the sets; without `anchors`, they are picked from `candidates`.
        """
        if rows is None:
            return self
        own, picked = None if self.own is None else self.own[rows], anchors is None
        if anchors is None:
            assert own is not None, "anchors are among the candidates"
            some = candidates.index_select(0, own)
        else:
            some = anchors.index_select(0, rows)
        labels = self.anchor_labels[rows]
        return replace(self, anchors=some, candidates=candidates, anchor_labels=labels, own=own, picked=picked)
