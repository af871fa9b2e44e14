"""Mixing pairs M(a): which two examples are mixed for an anchor.

    pos-neg   P(a) × N(a)    label λ
    anc-neg   {a}  × N(a)    label λ
    pos-pos   P(a) × P(a)    label 1
    neg-neg   N(a) × N(a)    label 0

M(a) is a product of two sides, so it is kept as two index lists per anchor, never as a list of pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from metrix.core.compute.blocks import rows_in_block
from metrix.core.sets import Sets

PAIR_KINDS = ("pos-neg", "anc-neg", "pos-pos", "neg-neg")


class Side(NamedTuple):
    """One side of M(a) for some anchors: examples by number, or all of the batch where it is None."""

    examples: Tensor | None  # (anchors, m)
    mask: Tensor | None  # (anchors, m)  bool; None where every entry counts
    size: int  # m


@dataclass(frozen=True)
class MixingPairs:
    """M(a) = left × right for the anchors `rows` of a `Sets`: anchors, left, right are the three axes."""

    rows: Tensor  # (a,)  which anchors
    left: Side | None  # None: the anchor itself
    right: Side
    kind: str

    def valid(self) -> Tensor:
        """Which pairs are in M(a): bool, broadcastable to (a, l, r)."""
        right = self.right.mask
        valid = torch.ones_like(self.rows, dtype=torch.bool)[:, None, None] if right is None else right[:, None, :]
        if self.left is not None and self.left.mask is not None:
            valid = valid & self.left.mask[:, :, None]
        return valid

    def labels(self, lam: Tensor) -> Tensor:
        """mix_λ(y, y') of each pair, from its λ (a, l, r)."""
        if self.kind == "pos-pos":
            return torch.ones_like(lam)
        return torch.zeros_like(lam) if self.kind == "neg-neg" else lam

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
            return matrix.unsqueeze(0) if right is None else matrix.T[right].transpose(1, 2)
        if right is None:
            flat = matrix.index_select(0, left.flatten())
            return flat.view(*left.shape, matrix.shape[1])
        return matrix[left[:, :, None], right[:, None, :]]

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


def _of_side(matrix: Tensor, rows: Tensor, side: Side) -> Tensor:
    picked = rows_of(matrix, rows)
    return picked if side.examples is None else picked.gather(1, side.examples)


def rows_of(matrix: Tensor, rows: Tensor) -> Tensor:
    """Some rows of a matrix, without a copy where they are all of them."""
    everything = len(rows) == len(matrix) and bool((rows[1:] > rows[:-1]).all())
    return matrix if everything else matrix.index_select(0, rows)


def mixing_pairs(
    kind: str,
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
    if hardest is not None and hardest < n and kind != "pos-pos":
        assert similarity is not None
        hard, negative = _hardest(similarity, negative, hardest)
    num_pos, num_neg = positive.sum(1), negative.sum(1)
    ones = torch.ones_like(num_pos)
    num_left, num_right = {
        "pos-neg": (num_pos, num_neg),
        "anc-neg": (ones, num_neg),
        "pos-pos": (num_pos, num_pos),
        "neg-neg": (num_neg, num_neg),
    }[kind]
    rows = ((num_left > 0) & (num_right > 0)).nonzero().flatten()
    if len(rows) == 0:
        return
    listed, longest, shortest = None, n, n
    if kind.startswith("pos"):
        counts = num_pos[rows]
        longest, shortest = int(counts.max()), int(counts.min())
        if longest != shortest:
            rows = rows[counts.argsort(descending=True, stable=True)]
        listed = _listed(positive, longest)
    width = hard.shape[1] if hard is not None else n
    start = 0
    while start < len(rows):
        longest = int(num_pos[rows[start]]) if listed is not None else width
        block = rows[start : start + rows_in_block(max(per_anchor, _pairs_of_anchor(kind, longest, width)))]
        start += len(block)
        negatives = _negatives(hard, negative, block)
        if listed is None:
            left = None if kind == "anc-neg" else negatives
            yield MixingPairs(block, left, negatives, kind)
            continue
        index = listed.index_select(0, block)[:, :longest] if len(block) < len(listed) else listed[block][:, :longest]
        padded = index < 0
        mask = None if shortest == longest else ~padded
        positives = Side(index if mask is None else index.masked_fill(padded, 0), mask, longest)
        yield MixingPairs(block, positives, positives if kind == "pos-pos" else negatives, kind)


def anchors_in_blocks(kind: str, sets: Sets, hardest: int | None) -> list[Tensor]:
    """The anchors that have a mixing pair, by number, in blocks whose `mixing_pairs` are one block each.

    Anchors of a class stay together, because they share positives.
    """
    n = len(sets.candidates)
    classes, sizes = torch.unique(sets.candidate_labels, return_counts=True)
    place = torch.searchsorted(classes, sets.anchor_labels).clamp_max(len(classes) - 1)
    same = torch.where(classes[place] == sets.anchor_labels, sizes[place], 0)
    num_pos = same if sets.own is None else same - 1
    usable = torch.ones_like(num_pos, dtype=torch.bool)
    if "pos" in kind:
        usable = usable & (num_pos > 0)
    if "neg" in kind:
        usable = usable & (same < n)
    order = place.argsort(stable=True)
    order = order[num_pos[order].argsort(descending=True, stable=True)]
    order = order[usable[order]]
    counts, width = num_pos[order].tolist(), n if hardest is None else min(hardest, n)
    blocks, start = [], 0
    while start < len(counts):
        longest = counts[start] if "pos" in kind else width
        rows = rows_in_block(max(n, _pairs_of_anchor(kind, longest, width)))
        blocks.append(order[start : start + rows])
        start += rows
    return blocks


def _pairs_of_anchor(kind: str, longest: int, width: int) -> int:
    """How many pairs an anchor with `longest` positives (or negatives on the left) and `width` negatives has."""
    return {"anc-neg": width, "pos-pos": longest * longest}.get(kind, longest * width)


def _negatives(hard: Tensor | None, negative: Tensor, block: Tensor) -> Side:
    if hard is not None:
        index = hard[block]
        return Side(index, negative[block], index.shape[1])
    return Side(None, negative[block], negative.shape[1])


def _listed(positive: Tensor, longest: int) -> Tensor:
    """The numbers of the positives of each anchor, filled up with -1: (anchors, longest)."""
    anchor, example = positive.nonzero().unbind(1)
    counts = positive.sum(1)
    place = torch.arange(len(anchor), device=anchor.device) - (counts.cumsum(0) - counts)[anchor]
    listed = torch.full((len(positive), longest), -1, dtype=torch.int64, device=positive.device)
    listed[anchor, place] = example
    return listed


def _hardest(similarity: Tensor, negative: Tensor, k: int) -> tuple[Tensor, Tensor]:
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
