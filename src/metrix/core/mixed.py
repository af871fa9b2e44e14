"""eq. loss-mixed: the generic loss over labelled mixed embeddings V(a) instead of examples U(a).

Mixup types differ in how the similarity of an anchor to a mixed example is computed:

    Interpolated   from products of vectors, in closed form (embed mixup; feature mixup, linear head)
    EmbeddedPairs  from the mixed examples themselves, each distinct one embedded once
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from metrix.core.closed_form import Interpolated, interpolated_totals, pair_totals
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.factors import Factors
from metrix.core.generic import Totals, Weights
from metrix.core.loss import Loss
from metrix.core.mixed_anchors import mixed_anchor_totals
from metrix.core.pairs import PAIR_KINDS, MixingPairs, PairKind, distinct, mixing_pairs
from metrix.core.sets import Sets
from metrix.core.target import InterpolatedTarget, move_threshold
from metrix.errors import InvalidInput

# Where positives and negatives are proxies, only examples of different classes are mixed.
PAIRS_OF_MIXED_ANCHORS = tuple(kind.name for kind in PAIR_KINDS.values() if kind.left != kind.right)


@dataclass(frozen=True)
class EmbeddedPairs:
    """Mixed examples embedded one by one: `embed(i, j, lam)` takes pairs and their λ to unit embeddings (pairs, d)."""

    embed: Callable[[Tensor, Tensor, Tensor], Tensor]


Mixture = Interpolated | EmbeddedPairs


def mixed_loss(
    loss: Loss,
    mixture: Mixture,
    sets: Sets,
    factors: Factors,
    kind: PairKind,
    hardest: int | None = None,
    target: InterpolatedTarget | None = None,
) -> tuple[Tensor, int]:
    """eq. loss-mixed, averaged over the anchors that have a mixing pair.

    Args:
        loss: the generic loss.
        mixture: how mixed examples are computed.
        sets: anchors and candidates of the clean batch.
        factors: λ. It is drawn for the anchors of all processes, so that all have the same.
        kind: of mixing pairs.
        hardest: how many negatives of an anchor are mixed; None: all.
        target: the threshold of mixed examples by their label; None: that of the loss.

    Returns:
        The loss, a scalar, and how many anchors were left out.
    """
    with torch.autocast(sets.anchors.device.type, enabled=False):
        if loss.candidate_role == "proxies":
            return _mixed_anchors(loss, mixture, sets, factors, kind, hardest)
        return _mixed_candidates(loss, mixture, sets, factors, kind, hardest, target)


def _mixed_candidates(
    loss: Loss,
    mixture: Mixture,
    sets: Sets,
    factors: Factors,
    kind: PairKind,
    hardest: int | None,
    target: InterpolatedTarget | None,
) -> tuple[Tensor, int]:
    """Examples as positives and negatives: the anchor is clean, V(a) is what it is compared with."""
    embeddings = sets.candidates
    if kind.with_anchor and loss.anchor_role == "proxies":
        # the anchor lives among the embeddings, so that is where it is mixed, whatever the mixup type
        mixture = Interpolated(embeddings, normalise=_is_normalised(mixture))
    of_mixed = loss
    if target is not None:
        of_mixed = move_threshold(loss, target.for_mixture(kind, _is_normalised(mixture)))
    if isinstance(mixture, Interpolated):
        totals = interpolated_totals(of_mixed, mixture, sets, factors, kind, hardest)
    else:
        totals = _embedded_totals(of_mixed, mixture, sets, factors, kind, hardest)
    totals = _nothing(loss, embeddings) if totals is None else totals
    return loss.conclude(totals, len(sets.anchors), embeddings, ranks=sets.ranks, part="mixed loss")


def _is_normalised(mixture: Mixture) -> bool:
    return mixture.normalise if isinstance(mixture, Interpolated) else True


def _embedded_totals(
    loss: Loss, mixture: EmbeddedPairs, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> Totals | None:
    n, with_anchor = len(sets.candidates), kind.with_anchor
    lam = factors.matrix((sets.total if with_anchor else n, n))
    lam = lam[sets.start : sets.start + len(sets.anchors)] if with_anchor else lam
    similarity = None if hardest is None else sets.similarity.detach()
    blocks = list(mixing_pairs(kind, sets, hardest, similarity, per_anchor=n * n))
    if not blocks:
        return None
    i, j = distinct(blocks, (lam.shape[0], lam.shape[1])).unbind(1)
    V = mixture.embed(i + sets.start if with_anchor else i, j, lam[i, j]).to(sets.anchors.dtype)  # (pairs, d)
    number = torch.zeros(lam.shape, dtype=torch.int64, device=lam.device)
    number[i, j] = torch.arange(len(i), device=lam.device)

    def block_totals(block: MixingPairs, anchors: Tensor, V: Tensor) -> Totals:
        which = block.of_pair(number).expand(len(block.rows), -1, -1)
        S = (anchors[block.rows] @ V.T).gather(1, which.flatten(1)).view(which.shape)
        return pair_totals(loss, block, S, block.of_pair(lam))

    return sum_over_blocks(block_totals, blocks, [sets.anchors, V], loss.learnable())


def _mixed_anchors(
    loss: Loss, mixture: Mixture, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> tuple[Tensor, int]:
    """Proxies as positives and negatives: the mixed example is the anchor."""
    if kind.name not in PAIRS_OF_MIXED_ANCHORS:
        raise InvalidInput(
            f"pairs {kind.name!r} with {type(loss).__name__}: its positives and negatives are proxies, so only "
            f"examples of different classes are mixed; expected {' or '.join(map(repr, PAIRS_OF_MIXED_ANCHORS))}"
        )
    mixed = mixture.embed if isinstance(mixture, EmbeddedPairs) else mixture
    found = mixed_anchor_totals(loss, mixed, sets, factors, hardest)
    totals, anchors = (_nothing(loss, sets.examples), len(sets.anchors)) if found is None else found
    return loss.conclude(totals, anchors, sets.examples, ranks=sets.ranks, part="mixed loss")


def _nothing(loss: Loss, like: Tensor) -> Totals:
    """The totals of no anchor at all."""
    none = like.new_zeros(0, 1)
    return loss.reduce(loss.row, none, Weights(none, none))
