"""eq. loss-mixed in closed form: no mixed example is formed.

For v = λ u_i + (1-λ) u_j, all that a loss needs of v is

    s(a, v) = (λ ⟨a, u_i⟩ + (1-λ) ⟨a, u_j⟩) / ‖v‖
    ‖v‖²    = λ² ⟨u_i, u_i⟩ + (1-λ)² ⟨u_j, u_j⟩ + 2 λ (1-λ) ⟨u_i, u_j⟩

so products of pairs of vectors are enough. u are the unit embeddings (embed mixup), or the outputs of
a linear head before normalisation (feature mixup under average pooling).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.comparison import Comparison, Comparisons, Products, Rows, pick
from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin
from metrix.core.factors import Factors
from metrix.core.pairs import MixingPairs, PairKind, PairPlan, mixing_pairs, plan_pairs, send_plans
from metrix.core.sets import Sets


class _InverseNorms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Tensor, lam: Tensor) -> Tensor:
        out = _plain_inverse_norms(products, lam)
        ctx.save_for_backward(products, lam, out)
        return out

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        products, lam, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            return twin_gradients(lambda g: _plain_inverse_norms(g, lam), [products], [grad])[0], None
        # -λ(1-λ) / ‖v‖³
        return torch.addcmul(lam, lam, lam, value=-1.0).mul_(out).mul_(out).mul_(out).mul_(grad).neg_(), None


def _plain_inverse_norms(products: Tensor, lam: Tensor) -> Tensor:
    both = torch.addcmul(lam, lam, lam, value=-1.0)  # λ(1-λ)
    # λ² + (1-λ)² + 2λ(1-λ)g = 1 - 2λ(1-λ)(1-g), without the cancellation near λ = 0 and 1
    squared = torch.rsub(torch.addcmul(both, both, products, value=-1.0), 1.0, alpha=2.0)
    return F.threshold(squared, 4.0 * torch.finfo(squared.dtype).eps, torch.inf).rsqrt()


def inverse_norms(products: Tensor, lam: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
    """1/‖λ l_i + (1-λ) r_j‖ for all i, j from the products ⟨l_i, r_j⟩: (left, right).

    `left` and `right` are the squared norms of vectors that are not unit. A mixture that vanishes (opposite
    vectors, λ = 1/2) has no direction: 0 there.
    """
    if left is None or right is None:
        of_unit: Tensor = (_plain_inverse_norms if use_twin() else _InverseNorms.apply)(products, lam)
        return of_unit
    both = torch.addcmul(lam, lam, lam, value=-1.0)
    squared = lam.square() * left[:, None] + (1.0 - lam).square() * right[None, :] + 2.0 * both * products
    largest = F.pad(right.detach(), (0, 1), value=torch.finfo(right.dtype).tiny).max()  # of none, in an empty part
    vanishes = squared <= 4.0 * torch.finfo(squared.dtype).eps * largest
    return squared.masked_fill(vanishes, torch.inf).rsqrt()


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

    def of_prefixes(self, sets: Sets) -> list[tuple[Interpolated, Sets]]:
        """The mixtures of each prefix of the embedding, with its sets; vectors of unit norm are those of the sets."""
        found = []
        for dim, part in zip(sets.prefixes.dims, sets.of_prefixes(), strict=True):
            of_sets = ((sets.candidates, part.candidates), (sets.examples, part.examples))
            cut = next((prefix for whole, prefix in of_sets if self.vectors is whole), None)
            assert cut is not None or not self.unit, "unit vectors are those of the sets"
            found.append((replace(self, vectors=self.vectors[:, :dim] if cut is None else cut), part))
        return found


def compare_mixtures(
    mixture: Interpolated, sets: Sets, factors: Factors, kind: PairKind, hardest: int | None
) -> Comparisons:
    """Anchors with the mixtures of their mixing pairs.

    Each of several processes draws the λ of all anchors, so that they are those of a single process.
    """
    u, with_anchor = mixture.vectors, kind.with_anchor
    lam_of = factors.of(sets.total if with_anchor else len(u), len(u))
    plans, _ = send_plans(plan_pairs(kind, sets, hardest, per_anchor=len(u)), sets.anchors.device)
    # ‖v‖ of an anchor's own mixtures follows from what it is compared with, where both are of unit norm
    needs_gram = mixture.normalise and not (mixture.unit and with_anchor)
    to_anchors, of_vectors, tensors = _products(mixture, sets, needs_gram)
    split = len(to_anchors.tensors)
    chosen_by = None if hardest is None else sets.products.detach()

    def compare(plan: PairPlan, squares: Tensor | None, *tensors: Tensor) -> Comparison:
        A = to_anchors.rows(plan.rows, *tensors[:split])  # (a, n)  ⟨a, u⟩
        similarity = A if chosen_by is None else chosen_by.rows(plan.rows, *chosen_by.tensors)
        pairs = mixing_pairs(kind, plan, sets, hardest, similarity)
        lefts: Rows = _numbers(plan.rows, sets) if with_anchor else plan.lefts
        own = _own(A, lefts) if with_anchor and not mixture.unit else None
        lam = lam_of.rows(lefts)  # (lefts, n)
        norms = None
        if mixture.normalise:
            products = A if of_vectors is None else of_vectors.rows(lefts, *(tensors[split:] or tensors))
            norms = inverse_norms(products, lam, None if squares is None else pick(squares, lefts), squares)
        return _compare_pairs(pairs, A, own, lam, norms)

    prefixes = [_products(*part, needs_gram).tensors for part in mixture.of_prefixes(sets)]
    return Comparisons(plans, tensors, compare, prefixes, sets.prefixes.weight)


class _MixtureProducts(NamedTuple):
    """⟨a, u⟩, and ⟨u, u⟩ where it is needed; of these, what a gradient goes to, after the squared norms."""

    to_anchors: Products
    of_vectors: Products | None
    tensors: list[Tensor | None]


def _products(mixture: Interpolated, sets: Sets, needs_gram: bool) -> _MixtureProducts:
    u = mixture.vectors
    among = u is sets.candidates  # whether what is compared with the anchors is what is mixed
    to_anchors = sets.products if among else Products.of(sets.anchors, u)
    same = among and sets.anchors is sets.candidates
    of_vectors = (to_anchors if same else Products.of(u, u)) if needs_gram else None
    more = () if of_vectors is None or same else of_vectors.tensors
    return _MixtureProducts(to_anchors, of_vectors, [mixture.squared_norms(), *to_anchors.tensors, *more])


def _numbers(rows: Tensor | None, sets: Sets) -> Rows:
    """Anchors by their number among those of all processes."""
    if rows is None:
        return None if sets.share is None else sets.share.rows
    return rows + sets.start


def _own(A: Tensor, numbers: Rows) -> Tensor:
    """⟨a, u_a⟩ of the anchors with these numbers."""
    if isinstance(numbers, Tensor):
        return A.gather(1, numbers.unsqueeze(1)).squeeze(1)
    return A.diagonal(0 if numbers is None else numbers.start)


def _compare_pairs(pairs: MixingPairs, A: Tensor, own: Tensor | None, lam: Tensor, norms: Tensor | None) -> Comparison:
    """S, Y and valid of mixing pairs (a, l, r), from ⟨a, u⟩ and the λ and norms of pairs (left, right)."""
    inverse = None if norms is None else pairs.of_pair(norms)
    S = mixed_similarity(pairs.of_left(A, own), pairs.of_right(A), pairs.of_pair(lam), inverse)
    return pairs.compare(S, lam)
