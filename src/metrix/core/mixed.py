"""eq. loss-mixed: the generic loss over labelled mixed embeddings V(a) instead of examples U(a).

Mixup types differ in how the similarity of an anchor to a mixed example is computed:

    Interpolated   from products of vectors, in closed form (embed mixup; feature mixup, linear head)
    EmbeddedPairs  from the mixed examples themselves, each distinct one embedded once

Where positives and negatives are proxies, the mixed example is the anchor. Pairs (i, j) are then of different classes,
and proxy c has the label λ[c = y_i] + (1-λ)[c = y_j]. Where labels are not classes (`relations`), j is a negative of i,
and proxy c has the label λ Y(i, c) + (1-λ) Y(j, c).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.closed_form import Interpolated, compare_mixtures, inverse_norms, mixed_similarity
from metrix.core.comparison import Comparison, Comparisons, Products, pick, to_device
from metrix.core.compute.blocks import rows_in_block
from metrix.core.compute.derivatives import without_autocast
from metrix.core.factors import FactorMatrix, Factors
from metrix.core.loss import Loss, LossValue
from metrix.core.pairs import (
    PAIR_KINDS,
    PairKind,
    PairPlan,
    hardest_negatives,
    mixing_pairs,
    plan_pairs,
    send_plans,
)
from metrix.core.sets import Sets, nearest_center
from metrix.errors import InvalidInput

# Where positives and negatives are proxies, only examples of different classes are mixed.
PAIRS_OF_MIXED_ANCHORS = tuple(kind.name for kind in PAIR_KINDS.values() if kind.left != kind.right)


@dataclass(frozen=True)
class EmbeddedPairs:
    """Mixed examples embedded one by one: `embed(i, j, lam)` takes pairs and their λ to unit embeddings (pairs, d)."""

    embed: Callable[[Tensor, Tensor, Tensor], Tensor]


Mixture = Interpolated | EmbeddedPairs


def mixed_loss(
    loss: Loss, mixture: Mixture, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None = None
) -> LossValue:
    """eq. loss-mixed, averaged over the anchors that have a mixing pair.

    Args:
        loss: the generic loss.
        mixture: how mixed examples are computed.
        sets: anchors and candidates of the clean batch.
        factors: λ. It is drawn for the anchors of all processes, so that all have the same.
        kind: of mixing pairs.
        hardest: how many negatives of an anchor are mixed; None: all.
    """
    anchors: int | Tensor = len(sets.anchors)
    if len(sets.examples) == 0:  # a process without examples mixes none
        nothing = sets.anchors.new_zeros(0, 1)
        empty, prefixes = Comparison(nothing, nothing, nothing.bool()), [()] * len(sets.prefixes.dims)
        totals = loss.over(Comparisons([None], [], lambda _: empty, prefixes))
        return loss.conclude(totals, anchors, sets.ranks, "mixed loss")
    with without_autocast(sets.anchors):
        if loss.candidate_role == "proxies":
            compared, anchors = compare_mixed_anchors(loss, mixture, sets, factors, kind, hardest)
        elif kind.with_anchor and loss.anchor_role == "proxies":
            # the anchor lives among the embeddings, so that is where it is mixed, whatever the mixup type
            normalise = mixture.normalise if isinstance(mixture, Interpolated) else True
            compared = compare_mixtures(
                Interpolated(sets.candidates, normalise=normalise), sets, factors, kind, hardest
            )
        elif isinstance(mixture, Interpolated):
            compared = compare_mixtures(mixture, sets, factors, kind, hardest)
        else:
            compared = compare_embedded(mixture, sets, factors, kind, hardest)
        return loss.conclude(loss.over(compared), anchors, sets.ranks, "mixed loss")


def compare_embedded(
    mixture: EmbeddedPairs, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> Comparisons:
    """Anchors with the mixed examples of their mixing pairs, of which each distinct one is embedded once."""
    n, with_anchor, device = len(sets.candidates), kind.with_anchor, sets.anchors.device
    lam = factors.of(sets.total if with_anchor else n, n).rows()
    lam = lam[sets.start : sets.start + len(sets.anchors)] if with_anchor else lam
    flat = find_pairs(kind, sets, hardest)
    plans, (flat,) = send_plans(plan_pairs(kind, sets, hardest, per_anchor=n * n), device, flat)
    number = torch.zeros(lam.numel(), dtype=torch.int64, device=device)
    number = number.scatter(0, flat, torch.arange(len(flat), device=device)).view(lam.shape)
    V = _embed_pairs(mixture, flat, lam, sets.start if with_anchor else 0, sets)
    fixed = sets.products.detach()

    def compare(plan: PairPlan, anchors: Tensor, V: Tensor) -> Comparison:
        plan = plan._replace(places=None)
        pairs = mixing_pairs(kind, plan, sets, hardest, fixed.rows(plan.rows, *fixed.tensors))
        which, factors = (pick(x, plan.rows) if with_anchor else x for x in (number, lam))
        which = pairs.of_pair(which)
        some = pick(anchors, plan.rows)
        which = which.expand(len(some), *which.shape[1:])
        S = (some @ V.T).gather(1, which.flatten(1)).view(which.shape)
        return pairs.compare(S, factors)

    prefixes = [[part.anchors, x] for part, x in zip(sets.of_prefixes(), _prefixes_of(V, sets), strict=True)]
    return Comparisons(plans, [sets.anchors, V], compare, prefixes, sets.prefixes.weight)


def _prefixes_of(V: Tensor, sets: Sets) -> list[Tensor]:
    """Prefixes of mixed examples (pairs, d), brought to unit norm."""
    return [F.normalize(V[:, :dim], dim=1) for dim in sets.prefixes.dims]


def find_pairs(kind: PairKind, sets: Sets, hardest: int | None) -> Tensor:
    """The ordered pairs (left, right) that any anchor uses, each once, as left · n + right, on the host.

    Which negatives are the hardest, only the device knows: then its answer and the labels come in one transfer.
    """
    if hardest is None or hardest >= len(sets.candidates) or not kind.needs_negative:
        labelled = sets.labelled_on_host()
        return _used_pairs(kind, labelled.positive, labelled.negative).view(-1).nonzero().squeeze(1)
    labelled = sets.labelled()
    index, counts = hardest_negatives(sets.similarity, labelled.negative, hardest)
    negative = torch.zeros_like(labelled.negative).scatter(1, index, counts)
    return sets.bring(_used_pairs(kind, labelled.positive, negative)).view(-1).nonzero().squeeze(1)


def _used_pairs(kind: PairKind, positive: Tensor, negative: Tensor) -> Tensor:
    """(left, right)  bool, from P(a) and N(a) of all anchors (anchors, examples)."""
    sides = {"pos": positive, "neg": negative}
    if kind.with_anchor:
        return sides[kind.right]
    return (sides[kind.left].T.float() @ sides[kind.right].float()) > 0


def _embed_pairs(mixture: EmbeddedPairs, flat: Tensor, lam: Tensor, start: int, sets: Sets) -> Tensor:
    """Mixed examples (pairs, d) of pairs with λ in a matrix whose first row is that of the example `start`."""
    if len(flat) == 0:
        return sets.anchors.new_zeros(1, sets.anchors.shape[1])
    share, columns = lam.reshape(-1).index_select(0, flat), lam.shape[1]
    return mixture.embed(flat // columns + start, flat % columns, share).to(sets.anchors.dtype)


def compare_mixed_anchors(
    loss: Loss, mixture: Mixture, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> tuple[Comparisons, Tensor]:
    """Mixed examples with all proxies, and how many there are: every example with its partners of other classes."""
    if kind.name not in PAIRS_OF_MIXED_ANCHORS:
        raise InvalidInput(
            f"pairs {kind.name!r} with {type(loss).__name__}: its positives and negatives are proxies, so only "
            f"examples of different classes are mixed; expected {' or '.join(map(repr, PAIRS_OF_MIXED_ANCHORS))}"
        )
    n = len(sets.examples)
    partners = _partners(sets)
    count = partners.side_sizes()[1].clamp_max(n if hardest is None else hardest).sum()
    lam_of = factors.of(n, n)
    if isinstance(mixture, Interpolated):
        return _interpolate_anchors(mixture, sets, partners, lam_of, hardest), count
    return _embed_anchors(mixture, sets, partners, lam_of, hardest), count


def _partners(sets: Sets) -> Sets:
    """The examples of this process as anchors of all examples: an example is mixed with its negatives."""
    labels, device = sets.anchor_labels, sets.on_device()[0]
    found = Sets(
        *(sets.anchors, sets.examples, labels, sets.example_labels, None, sets.examples, sets.example_labels),
        *(sets.share, sets.ranks, sets.relation),
    )
    if labels is sets.example_labels:
        found._on_device = [device, device, None]  # they are there
    return found


class Tile(NamedTuple):
    """Pairs of examples: of this process's, on the left, and of all, on the right."""

    rows: slice
    columns: slice


def _interpolate_anchors(
    mixture: Interpolated, sets: Sets, partners: Sets, lam_of: FactorMatrix, hardest: int | None
) -> Comparisons:
    n, C = len(sets.examples), len(sets.candidates)
    hardest = None if hardest is None or hardest >= n else hardest

    def products(mixture: Interpolated, sets: Sets) -> tuple[Products, Products | None, list[Tensor | None]]:
        u = mixture.vectors
        to_proxies = sets.products if u is sets.anchors else Products.of(u, sets.candidates)
        grams = Products.of(u, u) if mixture.normalise else None
        more = () if grams is None else grams.tensors
        return to_proxies, grams, [mixture.squared_norms(), *to_proxies.tensors, *more]

    to_proxies, grams, whole = products(mixture, sets)
    split, labels = len(to_proxies.tensors), _labels_to_proxies(sets)

    def compare(tile: Tile, squares: Tensor | None, *tensors: Tensor) -> Comparison:
        rows = slice(tile.rows.start + sets.start, tile.rows.stop + sets.start)
        lam, valid = lam_of.rows(rows)[:, tile.columns], partners.negative(tile.rows)[:, tile.columns]
        norms = None
        if grams is not None:
            left, right = (None, None) if squares is None else (squares[rows], squares[tile.columns])
            products = grams.rows(rows, *tensors[split:])[:, tile.columns]
            norms = inverse_norms(products, lam, left, right)
        B_left = to_proxies.rows(rows, *tensors[:split]).unsqueeze(1)  # (left, 1, classes)
        B_right, Y_right = (
            to_proxies.rows(tile.columns, *tensors[:split]).unsqueeze(0),
            labels[tile.columns].unsqueeze(0),
        )
        if hardest is not None:
            index, valid = hardest_negatives(pick(partners.anchors, tile.rows) @ partners.candidates.T, valid, hardest)
            lam, norms = lam.gather(1, index), None if norms is None else norms.gather(1, index)
            B_right, Y_right = (
                x[0].index_select(0, index.flatten()).view(*index.shape, x.shape[2]) for x in (B_right, Y_right)
            )
        share = lam.unsqueeze(2)
        S = mixed_similarity(B_left, B_right, share, None if norms is None else norms.unsqueeze(2))
        Y = torch.lerp(Y_right, labels[rows].unsqueeze(1), share)
        S = nearest_center(S.flatten(0, 1), sets.centers)
        return Comparison(S, Y.flatten(0, 1), valid.reshape(-1, 1))

    tiles = _tiles(len(sets.anchors), n, C, hardest, sets.anchors.device)
    prefixes = [products(*part)[2] for part in mixture.of_prefixes(sets)]
    return Comparisons(tiles, whole, compare, prefixes, sets.prefixes.weight)


def _tiles(lefts: int, rights: int, classes: int, hardest: int | None, device: torch.device) -> list[Tile]:
    """All ordered pairs of examples as tiles; the hardest partners of an example are found among all."""
    whole = Tile(slice(0, lefts), slice(0, rights))
    if torch.compiler.is_compiling() or lefts == 0:
        return [whole]
    width = rights if hardest is None else max(hardest, -(-rights // classes))
    tall = rows_in_block(width * classes, device)
    if tall >= lefts:
        return [whole]
    rows = [slice(at, min(at + tall, lefts)) for at in range(0, lefts, tall)]
    wide = rights if hardest is not None else min(rights, rows_in_block(classes, device))
    return [Tile(r, slice(at, min(at + wide, rights))) for r in rows for at in range(0, rights, wide)]


def _labels_to_proxies(sets: Sets) -> Tensor:
    """(examples, classes)  how positive the proxies of each class are to an example."""
    alone = sets.anchors is sets.examples
    whole = sets if alone else replace(sets, anchors=sets.examples, anchor_labels=sets.example_labels)
    return whole.labelled().Y[:, :: sets.centers].to(sets.examples.dtype)


def _embed_anchors(
    mixture: EmbeddedPairs, sets: Sets, partners: Sets, lam_of: FactorMatrix, hardest: int | None
) -> Comparisons:
    lam = lam_of.rows(None if sets.share is None else sets.share.rows)
    device, labels = sets.anchors.device, _labels_to_proxies(sets)
    (flat,) = to_device([find_pairs(PAIR_KINDS["anc-neg"], partners, hardest)], device)
    V = _embed_pairs(mixture, flat, lam, sets.start, sets)
    any_pair = len(flat) > 0
    i, j = flat // lam.shape[1] + sets.start, flat % lam.shape[1]
    share = lam.reshape(-1).index_select(0, flat).unsqueeze(1)
    if not any_pair:  # one that does not count
        i, j, share = flat.new_zeros(1), flat.new_zeros(1), lam.new_zeros(1, 1)

    def compare(block: slice, V: Tensor, proxies: Tensor) -> Comparison:
        Y = torch.lerp(labels.index_select(0, j[block]), labels.index_select(0, i[block]), share[block])
        S = nearest_center(V[block] @ proxies.T, sets.centers)
        return Comparison(S, Y, torch.full((1, 1), any_pair, dtype=torch.bool, device=device))

    size = rows_in_block(len(sets.candidates), device)
    blocks = [slice(at, at + size) for at in range(0, len(V), size)]
    prefixes = [[x, part.candidates] for part, x in zip(sets.of_prefixes(), _prefixes_of(V, sets), strict=True)]
    return Comparisons(blocks, [V, sets.candidates], compare, prefixes, sets.prefixes.weight)
