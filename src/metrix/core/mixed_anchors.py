"""eq. loss-mixed where positives and negatives are proxies: the mixed example is the anchor.

Pairs (i, j) are of different classes; proxy c has the label λ[c = y_i] + (1-λ)[c = y_j]. Where labels are not classes
(`relations`), j is a negative of i, and proxy c has the label λ Y(i, c) + (1-λ) Y(j, c).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from metrix.core.closed_form import Interpolated, inverse_norms, mixed_similarity
from metrix.core.compute.blocks import is_held, rows_in_block
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.factors import Factors, RowsOfFactors
from metrix.core.generic import Totals, Weights
from metrix.core.loss import Loss
from metrix.core.pairs import hardest_negatives
from metrix.core.sets import Sets
from metrix.core.similarity import gram

Embed = Callable[[Tensor, Tensor, Tensor], Tensor]
Tile = tuple[Tensor, Tensor]  # examples by number: left ones, right ones


def mixed_anchor_totals(
    loss: Loss,
    mixture: Interpolated | Embed,
    sets: Sets,
    factors: Factors,
    hardest: int | None,
) -> tuple[Totals, int] | None:
    """Sums over all mixed examples, and how many there are; None if there are none.

    `mixture` is in closed form, or a function that embeds pairs (i, j) with their λ.
    """
    labels, n, num_classes = sets.example_labels.long(), len(sets.examples), len(sets.candidates)
    own = slice(sets.start, sets.start + len(sets.anchors))
    count = int(_count_partners(sets, labels, own).clamp_max(n if hardest is None else hardest).sum())
    if isinstance(mixture, Interpolated) and not is_held(n, max(n, num_classes), sets.anchors):
        rows = factors.rows((n, n))
        return (_streamed_totals(loss, mixture, sets, labels, rows, hardest), count) if count else None
    lam = factors.matrix((n, n))  # drawn by every process, so that all go on alike
    if count == 0:
        return None
    i, j = _pairs(sets, labels[own], labels, sets.anchors, sets.examples, hardest)
    i = i + sets.start
    if isinstance(mixture, Interpolated):
        return _held_totals(loss, mixture, sets, labels, lam, i, j), count
    return _embedded_totals(loss, mixture, sets, labels, lam[i, j], i, j), count


def _embedded_totals(loss: Loss, embed: Embed, sets: Sets, labels: Tensor, lam: Tensor, i: Tensor, j: Tensor) -> Totals:
    V = embed(i, j, lam).to(sets.anchors.dtype)  # (pairs, d)

    def block_totals(block: Tensor, V: Tensor, proxies: Tensor) -> Totals:
        return _totals(loss, sets, V[block] @ proxies.T, labels[i[block]], labels[j[block]], lam[block])

    return sum_over_blocks(block_totals, _numbers(i, sets), [V, sets.candidates], loss.learnable())


def _held_totals(
    loss: Loss, mixture: Interpolated, sets: Sets, labels: Tensor, lam: Tensor, i: Tensor, j: Tensor
) -> Totals:
    u = mixture.vectors
    norms = None
    if mixture.normalise:
        products = gram(u)
        squares = None if mixture.unit else products.diagonal()
        norms = inverse_norms(products, lam, squares, squares)

    def block_totals(block: Tensor, B: Tensor, norms: Tensor | None) -> Totals:
        left, right = i[block], j[block]
        factors = lam[left, right]
        norm = None if norms is None else norms[left, right].unsqueeze(1)
        S = mixed_similarity(B.index_select(0, left), B.index_select(0, right), factors.unsqueeze(1), norm)
        return _totals(loss, sets, S, labels[left], labels[right], factors)

    B = sets.similarity if u is sets.anchors else u @ sets.candidates.T  # (n, classes)
    return sum_over_blocks(block_totals, _numbers(i, sets), [B, norms], loss.learnable())


def _streamed_totals(
    loss: Loss, mixture: Interpolated, sets: Sets, labels: Tensor, rows_of_lam: RowsOfFactors, hardest: int | None
) -> Totals:
    fixed = sets.examples.detach()

    def tile_totals(tile: Tile, u: Tensor, proxies: Tensor, squares: Tensor | None) -> Totals:
        lefts, rights = tile
        i, j = _pairs(sets, labels[lefts], labels[rights], fixed[lefts], fixed[rights], hardest)
        lam = rows_of_lam(lefts)[:, rights]
        norm = None
        if mixture.normalise:
            left, right = (None, None) if squares is None else (squares[lefts], squares[rights])
            norm = inverse_norms(u[lefts] @ u[rights].T, lam, left, right)[i, j].unsqueeze(1)
        B_left, B_right = u[lefts] @ proxies.T, u[rights] @ proxies.T
        S = mixed_similarity(B_left.index_select(0, i), B_right.index_select(0, j), lam[i, j].unsqueeze(1), norm)
        return _totals(loss, sets, S, labels[lefts][i], labels[rights][j], lam[i, j])

    tensors = [mixture.vectors, sets.candidates, mixture.squared_norms()]
    numbers = torch.arange(len(labels), device=fixed.device)
    lefts = numbers[sets.start : sets.start + len(sets.anchors)]
    tiles = list(_tiles(lefts, numbers, len(sets.candidates), hardest))
    return sum_over_blocks(tile_totals, tiles, tensors, loss.learnable())


def _totals(loss: Loss, sets: Sets, S: Tensor, y_left: Tensor, y_right: Tensor, lam: Tensor) -> Totals:
    """The sums from the similarity of mixed examples to proxies (pairs, proxies)."""
    S, share = loss.nearest_center(S), lam.unsqueeze(1)
    if sets.relation is None:
        Y = torch.zeros_like(S)
        Y.scatter_(1, y_left.unsqueeze(1), share).scatter_(1, y_right.unsqueeze(1), 1.0 - share)
    else:
        classes = sets.candidate_labels[:: loss.centers]
        left, right = (sets.relation.to_proxies(y, classes, S.dtype) for y in (y_left, y_right))
        Y = torch.lerp(right, left, share)
    neg = torch.ones_like(Y) if loss.row.include_positive else 1.0 - Y
    return loss.reduce(loss.row, S, Weights(Y, neg))


def _pairs(
    sets: Sets, y_left: Tensor, y_right: Tensor, left: Tensor, right: Tensor, hardest: int | None
) -> tuple[Tensor, Tensor]:
    """Pairs of different classes, by their places among left and right; `hardest` of each left example."""
    allowed = _are_partners(sets, y_left, y_right)
    if hardest is not None and hardest < len(y_right):
        hard, counts = hardest_negatives(left @ right.T, allowed, hardest)
        allowed = torch.zeros_like(allowed).scatter_(1, hard, counts)
    i, j = allowed.nonzero().unbind(1)
    return i, j


def _are_partners(sets: Sets, y_left: Tensor, y_right: Tensor) -> Tensor:
    """(left, right)  bool: of different classes, or negatives of each other where labels are not classes."""
    if sets.relation is None:
        return y_left[:, None] != y_right[None, :]
    return sets.relation.between(y_left, y_right) <= sets.relation.positive_above


def _count_partners(sets: Sets, labels: Tensor, own: slice) -> Tensor:
    """How many partners each of this process's examples has: (own,)."""
    if sets.relation is None:
        _, place, sizes = torch.unique(labels, return_inverse=True, return_counts=True)
        counts: Tensor = len(labels) - sizes[place[own]]
        return counts
    blocks = torch.split(labels[own], rows_in_block(len(labels)))
    return torch.cat([_are_partners(sets, block, labels).sum(1) for block in blocks])


def _numbers(pairs: Tensor, sets: Sets) -> tuple[Tensor, ...]:
    """The numbers of pairs in blocks, each of a bounded number of similarities to proxies."""
    numbers = torch.arange(len(pairs), device=pairs.device)
    return torch.split(numbers, rows_in_block(len(sets.candidates)))


def _tiles(lefts: Tensor, rights: Tensor, num_classes: int, hardest: int | None) -> Iterator[Tile]:
    """All ordered pairs of examples as tiles; the hardest partners of an example are found among all."""
    if hardest is not None:
        for some in torch.split(lefts, rows_in_block(max(len(rights), hardest * num_classes))):
            yield some, rights
        return
    side = max(1, math.isqrt(rows_in_block(num_classes)))
    for some in torch.split(lefts, side):
        for others in torch.split(rights, side):
            yield some, others
