"""Mixing pairs M(a): which two examples are mixed for an anchor.

    pos-neg   P(a) × N(a)    label λ
    anc-neg   {a}  × N(a)    label λ
    pos-pos   P(a) × P(a)    label 1
    neg-neg   N(a) × N(a)    label 0

Where labels are not classes (`relations`), both sides bring theirs: λ Y(a, left) + (1-λ) Y(a, right).

M(a) is a product of two sides, so it is kept as two index lists per anchor, never as a list of pairs.
A kind of mixing pairs is one entry of `PAIR_KINDS`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from metrix.core.choices import METRIX_PAPER, Choice, by_name
from metrix.core.compute.blocks import rows_in_block
from metrix.core.sets import Sets

SideName = Literal["anc", "pos", "neg"]


@dataclass(frozen=True)
class PairKind(Choice):
    """A kind of mixing pairs: where the left and the right example come from, as seen from the anchor."""

    left: SideName
    right: SideName

    @property
    def with_anchor(self) -> bool:
        """Whether the left example is the anchor itself."""
        return self.left == "anc"

    @property
    def needs_positive(self) -> bool:
        """Whether an anchor without positives has no such pair."""
        return "pos" in (self.left, self.right)

    @property
    def needs_negative(self) -> bool:
        """Whether an anchor without negatives has no such pair."""
        return "neg" in (self.left, self.right)

    def is_possible(self, num_pos: Any, num_neg: Any) -> Any:
        """Whether an anchor with so many positives and negatives has such a pair, elementwise for arrays."""
        positive = (num_pos > 0) | (not self.needs_positive)
        return positive & ((num_neg > 0) | (not self.needs_negative))

    def labels(self, lam: Tensor) -> Tensor:
        """mix_λ(y, y') of pairs with these λ; y is 0 for a negative and 1 for a positive or the anchor."""
        if not self.needs_negative:
            return torch.ones_like(lam)
        return torch.zeros_like(lam) if self.left == "neg" else lam

    def pairs_of_anchor(self, lefts: int, negatives: int) -> int:
        """How many pairs an anchor has: `lefts` are its positives, or its negatives where these are on the left."""
        if self.with_anchor:
            return negatives
        return lefts * (lefts if self.right == "pos" else negatives)


PAIR_KINDS: dict[str, PairKind] = by_name(
    PairKind("pos-neg", "a positive of the anchor with a negative, label λ", METRIX_PAPER, "pos", "neg"),
    PairKind("anc-neg", "the anchor with a negative, label λ", METRIX_PAPER, "anc", "neg"),
    PairKind("pos-pos", "two positives, label 1", METRIX_PAPER, "pos", "pos"),
    PairKind("neg-neg", "two negatives, label 0", METRIX_PAPER, "neg", "neg"),
)


class PairSide(NamedTuple):
    """One side of M(a) for some anchors: examples by number, or all of the batch where it is None."""

    examples: Tensor | None  # (anchors, m)
    mask: Tensor | None  # (anchors, m)  bool; None where every entry counts
    size: int  # m


@dataclass(frozen=True)
class MixingPairs:
    """M(a) = left × right for the anchors `rows` of a `Sets`: anchors, left, right are the three axes."""

    rows: Tensor  # (a,)  which anchors
    left: PairSide | None  # None: the anchor itself
    right: PairSide
    kind: PairKind
    Y: Tensor | None = None  # (anchors, examples)  of the `Sets`, where labels are not classes

    def valid(self) -> Tensor:
        """Which pairs are in M(a): bool, broadcastable to (a, l, r)."""
        right = self.right.mask
        valid = torch.ones_like(self.rows, dtype=torch.bool)[:, None, None] if right is None else right[:, None, :]
        if self.left is not None and self.left.mask is not None:
            valid = valid & self.left.mask[:, :, None]
        return valid

    def labels(self, lam: Tensor) -> Tensor:
        """mix_λ(y, y') of each pair, from its λ (a, l, r)."""
        if self.Y is None:
            return self.kind.labels(lam)
        left, right = self.of_left(self.Y, None), self.of_right(self.Y)
        return torch.lerp(right, left, lam)

    def of_pair(self, matrix: Tensor) -> Tensor:
        """What a matrix (left, right) over ordered pairs of examples says of each pair in M(a).

        For pairs with the anchor itself, the matrix is over (anchor, example). Broadcastable to (a, l, r).
        """
        right = self.right.examples
        if self.left is None:
            picked = matrix[self.rows] if len(self.rows) != len(matrix) else matrix
            picked = picked if right is None else picked.gather(1, right)
            return picked.unsqueeze(1)
        left = self.left.examples
        if left is None:
            if right is None:
                return matrix.unsqueeze(0)
            flat = matrix.index_select(1, right.flatten())
            return flat.view(len(matrix), *right.shape).transpose(0, 1)
        if right is None:
            flat = matrix.index_select(0, left.flatten())
            return flat.view(*left.shape, matrix.shape[1])
        number = left[:, :, None] * matrix.shape[1] + right[:, None, :]
        # not matrix[left, right]: its backward pass adds up in any order on several threads of the CPU
        return matrix.reshape(-1).index_select(0, number.flatten()).view(number.shape)

    def of_left(self, matrix: Tensor, own: Tensor | None) -> Tensor:
        """What a matrix (anchor, example) says of the left example of each pair: (a, l, 1).

        `own` (anchor,) says it of the anchor itself; None stands for ones.
        """
        if self.left is not None:
            return _of_side(matrix, self.rows, self.left).unsqueeze(2)
        return matrix.new_ones(()) if own is None else own[self.rows][:, None, None]

    def of_right(self, matrix: Tensor) -> Tensor:
        """What a matrix (anchor, example) says of the right example of each pair: (a, 1, r)."""
        return _of_side(matrix, self.rows, self.right).unsqueeze(1)


def _of_side(matrix: Tensor, rows: Tensor, side: PairSide) -> Tensor:
    picked = rows_of(matrix, rows)
    return picked if side.examples is None else picked.gather(1, side.examples)


def rows_of(matrix: Tensor, rows: Tensor) -> Tensor:
    """Some rows of a matrix, without a copy where they are all of them."""
    everything = len(rows) == len(matrix) and bool((rows[1:] > rows[:-1]).all())
    return matrix if everything else matrix.index_select(0, rows)


def mixing_pairs(
    kind: PairKind,
    sets: Sets,
    hardest: int | None,
    similarity: Tensor | None,
    per_anchor: int = 1,
) -> Iterator[MixingPairs]:
    """M(a) of every anchor that has one, in blocks of bounded size (one anchor at least).

    An anchor counts for `per_anchor` pairs at least, where the caller's work on it is that large.
    `hardest` keeps for each anchor its most similar negatives by `similarity` (anchors, examples).
    Anchors come in the order of their number of pairs, so that lists of unequal length waste little.
    """
    positive, negative = sets.positive, sets.negative
    n = positive.shape[1]
    hard: Tensor | None = None
    if hardest is not None and hardest < n and kind.needs_negative:
        assert similarity is not None
        hard, negative = hardest_negatives(similarity, negative, hardest)
    num_pos = positive.sum(1)
    Y = None if sets.relation is None else sets.grades
    rows = kind.is_possible(num_pos, negative.sum(1)).nonzero().flatten()
    if len(rows) == 0:
        return
    listed, shortest = None, 0
    if kind.left == "pos":
        counts = num_pos[rows]
        longest, shortest = int(counts.max()), int(counts.min())
        if longest != shortest:
            rows = rows[counts.argsort(descending=True, stable=True)]
        # an anchor without negatives, which is no row here, may have more positives than any other
        listed = _listed(positive, int(num_pos.max()))
    width = n if hard is None else hard.shape[1]
    for block, longest in _in_blocks(kind, rows, num_pos, width, per_anchor):
        negatives = _negatives(hard, negative, block)
        if listed is None:
            yield MixingPairs(block, None if kind.with_anchor else negatives, negatives, kind, Y)
            continue
        index = listed.index_select(0, block)[:, :longest] if len(block) < len(listed) else listed[block][:, :longest]
        padded = index < 0
        mask = None if shortest == longest else ~padded
        positives = PairSide(index if mask is None else index.masked_fill(padded, 0), mask, longest)
        yield MixingPairs(block, positives, positives if kind.right == "pos" else negatives, kind, Y)


def anchors_in_blocks(kind: PairKind, sets: Sets, hardest: int | None) -> list[Tensor]:
    """The anchors that have a mixing pair, by number, in blocks whose `mixing_pairs` are one block each.

    Anchors of a class stay together, because they share positives.
    """
    n, (num_pos, num_neg) = len(sets.candidates), sets.side_sizes()
    usable = kind.is_possible(num_pos, num_neg)
    order = sets.anchor_labels.argsort(stable=True)
    order = order[num_pos[order].argsort(descending=True, stable=True)]
    order = order[usable[order]]
    width = n if hardest is None else min(hardest, n)
    return [block for block, _ in _in_blocks(kind, order, num_pos, width, n)]


def _in_blocks(
    kind: PairKind, rows: Tensor, num_pos: Tensor, width: int, per_anchor: int
) -> Iterator[tuple[Tensor, int]]:
    """Anchors in blocks of bounded size, and the longest left side of each block.

    `rows` are anchors by falling number of positives `num_pos` (of all anchors), `width` is how many negatives an
    anchor has at most. An anchor counts for `per_anchor` pairs at least.
    """
    lefts = num_pos[rows].tolist() if kind.left == "pos" else [width] * len(rows)
    start = 0
    while start < len(lefts):
        size = rows_in_block(max(per_anchor, kind.pairs_of_anchor(lefts[start], width)))
        yield rows[start : start + size], lefts[start]
        start += size


def _negatives(hard: Tensor | None, negative: Tensor, block: Tensor) -> PairSide:
    if hard is not None:
        index = hard[block]
        return PairSide(index, negative[block], index.shape[1])
    return PairSide(None, negative[block], negative.shape[1])


def _listed(positive: Tensor, longest: int) -> Tensor:
    """The numbers of the positives of each anchor, filled up with -1: (anchors, longest)."""
    anchor, example = positive.nonzero().unbind(1)
    counts = positive.sum(1)
    place = torch.arange(len(anchor), device=anchor.device) - (counts.cumsum(0) - counts)[anchor]
    listed = torch.full((len(positive), longest), -1, dtype=torch.int64, device=positive.device)
    listed[anchor, place] = example
    return listed


def hardest_negatives(similarity: Tensor, negative: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k most similar negatives of each anchor (anchors, k), and which of them are negatives at all."""
    top = similarity.detach().masked_fill(~negative, -torch.inf).topk(k, dim=1)
    return top.indices, top.values > -torch.inf


def distinct(blocks: list[MixingPairs], shape: tuple[int, int]) -> Tensor:
    """The ordered pairs (left, right) that any anchor uses, each once: (pairs, 2)."""
    device = blocks[0].rows.device
    used = torch.zeros(shape, dtype=torch.bool, device=device)
    numbers = torch.arange(shape[0] * shape[1], device=device).view(shape)
    for block in blocks:
        number = block.of_pair(numbers)
        valid = block.valid().expand(len(block.rows), *_sizes(block))
        used.view(-1)[number.expand_as(valid)[valid]] = True
    return used.nonzero()


def _sizes(block: MixingPairs) -> tuple[int, int]:
    return (1 if block.left is None else block.left.size, block.right.size)
