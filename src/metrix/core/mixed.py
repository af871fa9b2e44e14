"""eq. loss-mixed: the generic loss over labelled mixed embeddings V(a) instead of examples U(a).

A mixup type is a way to get the similarity of an anchor to a mixed example:

    Interpolated   from products of vectors, in closed form (embed mixup; feature mixup, linear head)
    Embedded       from the mixed examples themselves, each distinct one embedded once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from metrix.core.factors import Factors
from metrix.core.generic import Totals, Weights, weights
from metrix.core.gram import gram, inverse_norms, mixed_similarity
from metrix.core.loss import Loss
from metrix.core.pairs import MixingPairs, distinct, mixing_pairs
from metrix.core.sets import Sets
from metrix.core.stream import streamed
from metrix.errors import InvalidInput

# Similarities evaluated at a time. About twenty numbers live for each of them in forward and backward.
BLOCK = 2**22


@dataclass(frozen=True)
class Interpolated:
    """Mixed examples are λ u_i + (1-λ) u_j of vectors u (n, d), normalised or not."""

    vectors: Tensor
    unit: bool = True
    normalise: bool = True


@dataclass(frozen=True)
class Embedded:
    """Mixed examples are embedded from pairs of indices and their λ: embed(i, j, lam) -> (pairs, d)."""

    embed: Callable[[Tensor, Tensor, Tensor], Tensor]


Mixture = Interpolated | Embedded


def mixed_loss(
    loss: Loss,
    mixture: Mixture,
    sets: Sets,
    labels: Tensor,
    factors: Factors,
    kind: str,
    hardest: int | None = None,
) -> tuple[Tensor, int]:
    """eq. loss-mixed, averaged over anchors with a mixing pair, and how many anchors were left out.

    `sets` are those of the clean batch, `factors` are the λ, `kind` is a kind of mixing pairs,
    `hardest` the number of negatives of an anchor to mix with.
    """
    with torch.autocast(sets.anchors.device.type, enabled=False):
        if loss.candidate_role == "proxies":
            return _mixed_anchors(loss, mixture, sets, labels, factors, kind, hardest)
        return _mixed_candidates(loss, mixture, sets, factors, kind, hardest)


def _mixed_candidates(
    loss: Loss, mixture: Mixture, sets: Sets, factors: Factors, kind: str, hardest: int | None
) -> tuple[Tensor, int]:
    """Examples as positives and negatives: the anchor is clean, V(a) is what it is compared with."""
    embeddings, anchors, n = sets.candidates, len(sets.anchors), len(sets.candidates)
    if kind == "anc-neg" and loss.anchor_role == "proxies":
        # the anchor lives among the embeddings, so that is where it is mixed, whatever the mixup type
        normalise = mixture.normalise if isinstance(mixture, Interpolated) else True
        mixture = Interpolated(embeddings, normalise=normalise)
    similarity = None if hardest is None else sets.similarity.detach()
    per_anchor = 1 if isinstance(mixture, Interpolated) else n * n
    blocks = list(mixing_pairs(kind, sets, hardest, similarity, BLOCK, per_anchor))
    if not blocks:
        return loss.conclude(_nothing(embeddings), anchors, embeddings)
    lam = factors.matrix((anchors if kind == "anc-neg" else n, n))
    if isinstance(mixture, Interpolated):
        totals = _interpolated_totals(loss, mixture, sets, lam, blocks)
    else:
        totals = _embedded_totals(loss, mixture, sets, lam, blocks)
    return loss.conclude(totals, anchors, embeddings)


def _interpolated_totals(
    loss: Loss, mixture: Interpolated, sets: Sets, lam: Tensor, blocks: list[MixingPairs]
) -> Totals:
    u = mixture.vectors
    A = sets.similarity if u is sets.candidates else sets.anchors @ u.T  # (anchors, n)  ⟨a, u⟩
    own: Tensor | None = None  # ⟨a, u_a⟩, 1 for unit vectors
    norms: list[Tensor] = []
    with_anchor = blocks[0].left is None
    if with_anchor and not mixture.unit:
        own = A.diagonal()
    if mixture.normalise:
        products = A if mixture.unit and (with_anchor or sets.anchors is u) else gram(u)
        norms = [inverse_norms(products, lam, mixture.unit)]

    def block_totals(block: MixingPairs, A: Tensor, *rest: Tensor) -> Totals:
        norm = block.of_pair(rest[-1]) if norms else None
        own_product = rest[0] if own is not None else None
        factors = block.of_pair(lam)
        S = mixed_similarity(block.of_left(A, own_product), block.of_right(A), factors, norm)
        return _totals(loss, block, S, factors)

    tensors = [A, *([] if own is None else [own]), *norms]
    return streamed(block_totals, blocks, tensors, loss.learnable())


def _embedded_totals(loss: Loss, mixture: Embedded, sets: Sets, lam: Tensor, blocks: list[MixingPairs]) -> Totals:
    i, j = distinct(blocks, (lam.shape[0], lam.shape[1])).unbind(1)
    V = mixture.embed(i, j, lam[i, j]).to(sets.anchors.dtype)  # (pairs, d)
    number = torch.zeros(lam.shape, dtype=torch.int64, device=lam.device)
    number[i, j] = torch.arange(len(i), device=lam.device)

    def block_totals(block: MixingPairs, anchors: Tensor, V: Tensor) -> Totals:
        which = block.of_pair(number).expand(len(block.rows), -1, -1)
        S = (anchors[block.rows] @ V.T).gather(1, which.flatten(1)).view(which.shape)
        return _totals(loss, block, S, block.of_pair(lam))

    return streamed(block_totals, blocks, [sets.anchors, V], loss.learnable())


def _totals(loss: Loss, block: MixingPairs, S: Tensor, factors: Tensor) -> Totals:
    w = weights(block.labels(factors), block.valid(), loss.row.include_positive)
    pos, neg = (x.expand_as(S).flatten(1) for x in w)
    return loss.reduce(loss.row, S.flatten(1), Weights(pos, neg))


def _mixed_anchors(
    loss: Loss,
    mixture: Mixture,
    sets: Sets,
    labels: Tensor,
    factors: Factors,
    kind: str,
    hardest: int | None,
) -> tuple[Tensor, int]:
    """Proxies as positives and negatives: the mixed example is the anchor.

    Pairs (i, j) are of different classes; proxy c has the label λ[c = y_i] + (1-λ)[c = y_j].
    """
    if kind not in ("pos-neg", "anc-neg"):
        raise InvalidInput(
            f"pairs {kind!r} with {type(loss).__name__}: its positives and negatives are proxies, so only "
            "examples of different classes are mixed; accepted are 'pos-neg' and 'anc-neg'"
        )
    embeddings, proxies, labels = sets.anchors, sets.candidates, labels.long()
    n, num_classes = len(embeddings), len(proxies)
    allowed = labels[:, None] != labels[None, :]
    if hardest is not None and hardest < n:
        similarity = (embeddings @ embeddings.T).detach().masked_fill(~allowed, -torch.inf)
        hard = torch.zeros_like(allowed).scatter_(1, similarity.topk(hardest, dim=1).indices, True)
        allowed = allowed & hard
    pairs = allowed.nonzero()  # (pairs, 2)
    if len(pairs) == 0:
        return loss.conclude(_nothing(embeddings), n, embeddings)
    lam = factors.matrix((n, n))

    def totals(S: Tensor, i: Tensor, j: Tensor, shares: Tensor) -> Totals:
        Y = torch.zeros_like(S)
        Y.scatter_(1, labels[i].unsqueeze(1), shares).scatter_(1, labels[j].unsqueeze(1), 1.0 - shares)
        neg = torch.ones_like(Y) if loss.row.include_positive else 1.0 - Y
        return loss.reduce(loss.row, S, Weights(Y, neg))

    numbers = torch.arange(len(pairs), device=pairs.device)
    blocks = torch.split(numbers, max(1, BLOCK // num_classes))
    if isinstance(mixture, Embedded):
        i, j = pairs.unbind(1)
        V = mixture.embed(i, j, lam[i, j]).to(embeddings.dtype)

        def embedded(block: Tensor, V: Tensor, proxies: Tensor) -> Totals:
            i, j = pairs[block].unbind(1)
            return totals(V[block] @ proxies.T, i, j, lam[i, j].unsqueeze(1))

        return loss.conclude(streamed(embedded, blocks, [V, proxies]), len(pairs), embeddings)

    u = mixture.vectors
    norms = [inverse_norms(gram(u), lam, mixture.unit)] if mixture.normalise else []

    def interpolated(block: Tensor, B: Tensor, *norms: Tensor) -> Totals:
        i, j = pairs[block].unbind(1)
        shares = lam[i, j].unsqueeze(1)
        norm = norms[0][i, j].unsqueeze(1) if norms else None
        S = mixed_similarity(B.index_select(0, i), B.index_select(0, j), shares, norm)
        return totals(S, i, j, shares)

    B = sets.similarity if u is embeddings else u @ proxies.T  # (n, classes)
    found = streamed(interpolated, blocks, [B, *norms])
    return loss.conclude(found, len(pairs), embeddings)


def _nothing(like: Tensor) -> Totals:
    zero = torch.zeros((), dtype=torch.int64, device=like.device)
    return Totals(like.new_zeros(1), zero.reshape(1), zero)
