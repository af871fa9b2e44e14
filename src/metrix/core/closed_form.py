"""eq. loss-mixed in closed form: no mixed example is formed.

For v = λ u_i + (1-λ) u_j, all that a loss needs of v is

    s(a, v) = (λ ⟨a, u_i⟩ + (1-λ) ⟨a, u_j⟩) / ‖v‖
    ‖v‖²    = λ² ⟨u_i, u_i⟩ + (1-λ)² ⟨u_j, u_j⟩ + 2 λ (1-λ) ⟨u_i, u_j⟩

so products of pairs of vectors are enough. u are the unit embeddings (embed mixup), or the outputs of
a linear head before normalisation (feature mixup under average pooling).

Matrices over all pairs of examples (products, λ, norms) are held where they fit in memory. Otherwise each block of
anchors computes the rows that it needs, and they are freed with the block; λ of a pair is the same in every block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from metrix.core.compute.blocks import is_held
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.factors import Factors
from metrix.core.generic import Totals, Weights, weights
from metrix.core.loss import Loss
from metrix.core.pairs import MixingPairs, PairKind, PairSide, anchors_in_blocks, mixing_pairs
from metrix.core.sets import Sets
from metrix.core.similarity import gram, rows_of_gram


def inverse_norms(products: Tensor, lam: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
    """1/‖λ l_i + (1-λ) r_j‖ for all i, j from the products ⟨l_i, r_j⟩: (left, right).

    `left` and `right` are the squared norms of vectors that are not unit. A mixture that vanishes (opposite
    vectors, λ = 1/2) has no direction: 0 there.
    """
    both = lam * (1.0 - lam)
    if left is None or right is None:
        # λ² + (1-λ)² + 2λ(1-λ)g = 1 - 2λ(1-λ)(1-g), without the cancellation near λ = 0 and 1
        squared = 1.0 - 2.0 * both * (1.0 - products)
        scale = squared.new_ones(())
    else:
        squared = lam.square() * left[:, None] + (1.0 - lam).square() * right[None, :] + 2.0 * both * products
        scale = right.detach().max().clamp_min(torch.finfo(right.dtype).tiny)
    vanishes = squared <= 4.0 * torch.finfo(squared.dtype).eps * scale
    return torch.where(vanishes, 0.0, torch.rsqrt(torch.where(vanishes, 1.0, squared)))


def mixed_similarity(left: Tensor, right: Tensor, lam: Tensor, inverse_norm: Tensor | None) -> Tensor:
    """s(a, v) from ⟨a, u_i⟩, ⟨a, u_j⟩ and λ, each broadcastable to (anchors, left, right)."""
    mixed = torch.lerp(right, left, lam)
    return mixed if inverse_norm is None else mixed * inverse_norm


@dataclass(frozen=True)
class Interpolated:
    """Mixed examples λ u_i + (1-λ) u_j of vectors u."""

    vectors: Tensor  # (n, d)
    unit: bool = True  # whether the vectors are of unit norm
    normalise: bool = True  # whether mixed examples are brought to unit norm

    def squared_norms(self) -> Tensor | None:
        """⟨u, u⟩ (n,), or None where it is 1 or not needed."""
        return None if self.unit or not self.normalise else self.vectors.square().sum(1)


def interpolated_totals(
    loss: Loss, mixture: Interpolated, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> Totals | None:
    """Sums over the anchors that have a mixing pair; None if there are none.

    Each of several processes draws the λ of all anchors, so that they are those of a single process.
    """
    n = len(mixture.vectors)
    if is_held(sets.total if kind.with_anchor else max(sets.total, n), n, sets.anchors):
        return _held_totals(loss, mixture, sets, factors, kind, hardest)
    return _streamed_totals(loss, mixture, sets, factors, kind, hardest)


def _held_totals(
    loss: Loss, mixture: Interpolated, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> Totals | None:
    u, with_anchor = mixture.vectors, kind.with_anchor
    lam = factors.matrix((sets.total if with_anchor else len(u), len(u)))
    lam = lam[sets.start : sets.start + len(sets.anchors)] if with_anchor else lam
    blocks = list(mixing_pairs(kind, sets, hardest, None if hardest is None else sets.similarity.detach()))
    if not blocks:
        return None
    A = sets.similarity if u is sets.candidates else sets.anchors @ u.T  # (anchors, n)  ⟨a, u⟩
    own = A.diagonal(sets.start) if with_anchor and not mixture.unit else None  # ⟨a, u_a⟩, 1 for unit vectors
    norms = None
    if mixture.normalise:
        products = A if mixture.unit and (with_anchor or sets.anchors is u) else gram(u)
        squares = None if mixture.unit else products.diagonal()
        left = squares
        if with_anchor and sets.share is not None and squares is not None:
            products, left = products[sets.share.rows], squares[sets.share.rows]
        norms = inverse_norms(products, lam, left, squares)

    def block_totals(block: MixingPairs, A: Tensor, own: Tensor | None, norms: Tensor | None) -> Totals:
        return _totals(loss, block, block, A, own, norms, lam)

    return sum_over_blocks(block_totals, blocks, [A, own, norms], loss.learnable())


def _streamed_totals(
    loss: Loss, mixture: Interpolated, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> Totals | None:
    with_anchor, n = kind.with_anchor, len(mixture.vectors)
    rows_of_lam = factors.rows((sets.total if with_anchor else n, n))
    blocks = anchors_in_blocks(kind, sets, hardest)
    if not blocks:
        return None
    among = sets.own if mixture.vectors is sets.candidates else None  # which vectors the anchors are
    fixed_anchors, fixed_candidates = (None if x is None else x.detach() for x in sets.tensors)
    assert fixed_candidates is not None

    def block_totals(rows: Tensor, u: Tensor, all_anchors: Tensor | None, squares: Tensor | None) -> Totals:
        part = sets.part(rows, fixed_anchors, fixed_candidates)
        (block,) = mixing_pairs(kind, part, hardest, None if hardest is None else part.similarity)
        lefts, pairs = (rows + sets.start, block) if with_anchor else _with_rows_of_its_own(block, n)
        own = None
        if among is None:
            assert all_anchors is not None
            anchors = all_anchors.index_select(0, rows)
            A = anchors @ u.T  # (rows, n)
            if with_anchor and not mixture.unit:
                own = (anchors * u[lefts]).sum(1)
            products = A if with_anchor and mixture.unit else rows_of_gram(u, lefts)  # (lefts, n)
        elif with_anchor:
            A = products = rows_of_gram(u, among[rows])
        else:  # most left examples are anchors of the same block
            both, place = torch.unique(torch.cat([among[rows], lefts]), return_inverse=True)
            A, products = torch.split(rows_of_gram(u, both).index_select(0, place), [len(rows), len(lefts)])
        lam = rows_of_lam(lefts)
        norm = None
        if mixture.normalise:
            norm = inverse_norms(products, lam, None if squares is None else squares[lefts], squares)
        return _totals(loss, block, pairs, A, own, norm, lam)

    tensors = [mixture.vectors, sets.anchors if among is None else None, mixture.squared_norms()]
    return sum_over_blocks(block_totals, blocks, tensors, loss.learnable())


def _with_rows_of_its_own(block: MixingPairs, n: int) -> tuple[Tensor, MixingPairs]:
    """The left examples of a block, each once, and the block for matrices over (these, all examples)."""
    assert block.left is not None
    if block.left.examples is None:
        return torch.arange(n, device=block.rows.device), block
    lefts, place = torch.unique(block.left.examples, return_inverse=True)
    return lefts, replace(block, left=PairSide(place, block.left.mask, block.left.size))


def _totals(
    loss: Loss,
    block: MixingPairs,
    pairs: MixingPairs,
    A: Tensor,
    own: Tensor | None,
    norm: Tensor | None,
    lam: Tensor,
) -> Totals:
    """`block` says where pairs are in A (anchor, example), `pairs` where in norm and lam (left, right)."""
    factors = pairs.of_pair(lam)
    inverse = None if norm is None else pairs.of_pair(norm)
    S = mixed_similarity(block.of_left(A, own), block.of_right(A), factors, inverse)
    return pair_totals(loss, block, S, factors)


def pair_totals(loss: Loss, block: MixingPairs, S: Tensor, factors: Tensor) -> Totals:
    """The sums of a block from the similarity (a, l, r) of anchors to mixed examples, and their λ."""
    w = weights(block.labels(factors), block.valid(), loss.row.include_positive)
    pos, neg = (x.expand_as(S).flatten(1) for x in w)
    return loss.reduce(loss.row, S.flatten(1), Weights(pos, neg))
