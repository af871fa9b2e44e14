"""Anchors a, their positives P(a) and their negatives N(a): who is compared with whom.

Both are known from labels, so a batch too large for matrices of all pairs has them formed for some
anchors at a time.
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
    """eq. pos and neg: P(a) are the candidates of the class of anchor a but itself, N(a) all others.

    Of several processes each has the sets of its share of the anchors, with the candidates of all.
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

    @property
    def start(self) -> int:
        """Which of all anchors the first one is."""
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
        """s(a, x) of every anchor and candidate, computed once for the clean and the mixed loss."""
        if self.anchors is self.candidates:
            return gram(self.anchors)
        if self.picked and self.own is not None:
            return rows_of_gram(self.candidates, self.own)
        return self.anchors @ self.candidates.T

    @property
    def tensors(self) -> list[Tensor]:
        """Anchors and candidates; candidates alone if anchors are among them."""
        return [self.candidates] if self.own is not None else [self.anchors, self.candidates]

    def blocks(self) -> Sequence[Tensor | None]:
        """Anchors in blocks, by number; None stands for all of them, where their matrix is held."""
        anchors, candidates = len(self.anchors), len(self.candidates)
        if is_held(anchors, candidates, self.anchors):
            return [None]
        numbers = torch.arange(anchors, device=self.anchors.device)
        return torch.split(numbers, rows_in_block(candidates))

    def part(self, rows: Tensor | None, *tensors: Tensor) -> Sets:
        """Some anchors with all candidates.

        `tensors` stand for anchors and candidates, or for candidates alone, from which anchors are then picked.
        """
        if rows is None:
            return self
        own, picked = None if self.own is None else self.own[rows], len(tensors) == 1
        anchors = tensors[0].index_select(0, own if picked and own is not None else rows)
        labels = self.anchor_labels[rows]
        return replace(self, anchors=anchors, candidates=tensors[-1], anchor_labels=labels, own=own, picked=picked)
