"""Anchors a, their positives P(a) and their negatives N(a).

Both follow from labels, so for a batch too large for matrices of all pairs they are formed for some anchors at a
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from metrix.core.compute.blocks import is_held, rows_in_block
from metrix.core.distributed.ranks import ALONE, Ranks, Share
from metrix.core.generic import Weights, weights
from metrix.core.relations import Relation
from metrix.core.similarity import gram, rows_of_gram


@dataclass(frozen=True)
class Sets:
    """eq. pos and neg: P(a) are the candidates of the class of anchor a, without a itself; N(a) are all others.

    With a `relation`, labels are not classes: P(a) are the candidates that are more positive to a than its
    `positive_above`.

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
    relation: Relation | None = None  # how positive labels are to each other; None: labels are classes
    proxies: Literal["none", "anchors", "candidates"] = "none"  # what is a proxy; its label is its number

    @classmethod
    def of_examples(cls, embeddings: Tensor, labels: Tensor, relation: Relation | None = None) -> Sets:
        """Every example of a batch is an anchor, and all others are its candidates.

        >>> sets = Sets.of_examples(torch.eye(3), torch.tensor([0, 0, 1]))
        >>> sets.positive.tolist()
        [[False, True, False], [True, False, False], [False, False, False]]
        """
        numbers = torch.arange(len(labels), device=labels.device)
        return cls(embeddings, embeddings, labels, labels, numbers, embeddings, labels, relation=relation)

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
    def grades(self) -> Tensor:
        """(anchors, candidates)  how positive each candidate is, in [0, 1]; an anchor is not its own positive."""
        if self.relation is None:
            return self.positive.to(self.anchors.dtype)
        anchors, candidates, dtype = self.anchor_labels, self.candidate_labels, self.anchors.dtype
        if self.proxies == "anchors":
            return self.relation.to_proxies(candidates, anchors, dtype).T
        if self.proxies == "candidates":
            return self.relation.to_proxies(anchors, candidates, dtype)
        return self._without_own(self.relation.between(anchors, candidates, dtype))

    @cached_property
    def counts(self) -> Tensor:
        """(anchors, candidates)  bool: in P(a) or N(a), which an anchor itself and unknown pairs are not."""
        known = None
        if self.relation is not None and self.proxies == "none":
            known = self.relation.known(self.anchor_labels, self.candidate_labels)
        if known is None:
            shape = len(self.anchors), len(self.candidates)
            known = torch.ones(shape, dtype=torch.bool, device=self.anchors.device)
        return self._without_own(known)

    def _without_own(self, matrix: Tensor) -> Tensor:
        return matrix if self.own is None else matrix.scatter(1, self.own.unsqueeze(1), 0)

    @cached_property
    def positive(self) -> Tensor:
        """(anchors, candidates)  bool: in P(a)."""
        if self.relation is not None:
            return self.counts & (self.grades > self.relation.positive_above)
        return self._without_own(self.same)

    @cached_property
    def negative(self) -> Tensor:
        """(anchors, candidates)  bool: in N(a)."""
        return ~self.same if self.relation is None else self.counts & ~self.positive

    def weights(self, include_positive: bool) -> Weights:
        """What each candidate weighs in the two sums of eq. loss-labels."""
        if self.relation is not None:
            return weights(self.grades, self.counts, include_positive)
        negative = self.positive | self.negative if include_positive else self.negative
        return Weights(self.grades, negative.to(self.anchors.dtype))

    def side_sizes(self) -> tuple[Tensor, Tensor]:
        """|P(a)| and |N(a)| of every anchor (anchors,), without a matrix of all pairs."""
        n = len(self.candidates)
        if self.relation is None:
            classes, sizes = torch.unique(self.candidate_labels, return_counts=True)
            place = torch.searchsorted(classes, self.anchor_labels).clamp_max(len(classes) - 1)
            same = torch.where(classes[place] == self.anchor_labels, sizes[place], 0)
            return (same if self.own is None else same - 1), n - same
        numbers = torch.arange(len(self.anchors), device=self.anchors.device)
        parts = [self.part(rows, *self.tensors) for rows in torch.split(numbers, rows_in_block(n))]
        sizes_of = [(part.positive.sum(1), part.negative.sum(1)) for part in parts]
        positive, negative = (torch.cat(side) for side in zip(*sizes_of, strict=True))
        return positive, negative

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
