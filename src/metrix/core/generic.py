"""The generic loss: one function of similarities, labels and which candidates count.

eq. loss-labels and loss-mixed, for an anchor a with candidates k:

    loss(a) = τ( σ⁺( Σ_k Y ρ⁺(S) ) + σ⁻( Σ_k (1-Y) ρ⁻(S) ) )

    S      (a, k)   similarity of anchor a to its k candidates
    Y      (a, k)   how positive each candidate is, in [0, 1]
    valid  (a, k)   which candidates count

A loss is a `Row` of five functions. Clean and mixed losses differ only in their `Comparison`: S, Y and valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.comparison import Comparison
from metrix.core.functions import ArcExponential, CircleExponential, Exponential, Log, Log1p, identity
from metrix.core.log_sums import is_empty, log2_of_weights, log_sums

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """A row of Table 1, or one like it.

    `include_positive` puts positives in the negative sum too, with weight 1. `mean_positive` makes a mean, weighted
    by labels, of the positive sum. `each_positive` takes τ of each positive with the whole negative part,
    τ(ρ⁺(s_p) + σ⁻(Σ ρ⁻)), and the mean of that, weighted by labels; σ⁺ has no part in it.
    """

    tau: Function
    sigma_pos: Function
    sigma_neg: Function
    rho_pos: Function
    rho_neg: Function
    include_positive: bool = False
    mean_positive: bool = False
    each_positive: bool = False
    needs_positive: bool = field(init=False)  # whether σ⁺ of an empty sum, or a mean of none, is undefined
    needs_negative: bool = field(init=False)  # whether σ⁻ of an empty sum is
    vanishes: bool = field(init=False)  # whether the loss of an anchor without candidates is 0
    of_exponentials: bool = field(init=False)  # whether both sums are of exponentials of S, under logarithms
    is_quotient: bool = field(init=False)  # whether it is τ(log (Σ ρ⁻ / Σ ρ⁺)) of exponentials

    def __post_init__(self) -> None:
        needs = self.mean_positive or self.each_positive or not _finite_at_zero(self.sigma_pos)
        object.__setattr__(self, "needs_positive", needs)
        object.__setattr__(self, "needs_negative", not _finite_at_zero(self.sigma_neg))
        zero_at_zero = self.tau is identity and all(
            sigma is identity or isinstance(sigma, Log1p) for sigma in (self.sigma_pos, self.sigma_neg)
        )
        object.__setattr__(self, "vanishes", zero_at_zero and not self.needs_positive)
        logs = all(isinstance(sigma, Log | Log1p) for sigma in (self.sigma_pos, self.sigma_neg))
        of = logs and all(isinstance(rho, Exponential) for rho in (self.rho_pos, self.rho_neg))
        object.__setattr__(self, "of_exponentials", of)
        object.__setattr__(self, "is_quotient", self._is_quotient())

    def _is_quotient(self) -> bool:
        pos, neg = self.rho_pos, self.rho_neg
        if not (isinstance(pos, Exponential | ArcExponential) and isinstance(neg, Exponential) and neg.scale > 0):
            return False
        logs = (self.sigma_pos, self.sigma_neg) == (Log(-1.0), Log())
        return logs and not (self.mean_positive or self.each_positive) and (pos == neg or not self.include_positive)

    @property
    def cancels(self) -> bool:
        """Whether labels that are all alike leave a constant: -log Σ Y ρ + log Σ (1-Y) ρ with one ρ."""
        pos, neg = self.sigma_pos, self.sigma_neg
        if self.include_positive or not (isinstance(pos, Log) and isinstance(neg, Log)):
            return False
        return pos.sign == -neg.sign and self.rho_pos == self.rho_neg


def _finite_at_zero(sigma: Function) -> bool:
    if isinstance(sigma, Log | Log1p):
        return isinstance(sigma, Log1p)
    with torch.no_grad():
        return math.isfinite(float(sigma(torch.zeros(()))))


class Weights(NamedTuple):
    """What each candidate weighs in the two sums, booleans or numbers: broadcastable to S."""

    pos: Tensor
    neg: Tensor


def weights(compared: Comparison, include_positive: bool = False) -> Weights:
    """Y and 1-Y where valid, else 0."""
    S, Y, valid, spread = compared
    if Y.dtype == torch.int64:
        Y = torch.zeros_like(S, dtype=torch.bool).scatter(1, Y, True)
    if Y.dtype == torch.bool:
        return Weights(Y, valid if include_positive else valid ^ Y)
    counts, Y = valid.to(Y.dtype), Y if spread is None else spread(Y)
    pos = Y * counts
    return Weights(pos, counts if include_positive else counts - pos)


def log2_weights(compared: Comparison, include_positive: bool) -> Tensor:
    """The logarithms to base 2 of both `weights`, or about `EMPTY`: a new tensor (2, anchors, …)."""
    S, Y, valid, spread = compared
    if not Y.is_floating_point():
        both = weights(compared, include_positive)
        return log2_of_weights(torch.stack([w.expand_as(S) for w in both]), S.dtype)
    logs = log2_of_weights(torch.stack([Y, torch.ones_like(Y) if include_positive else 1.0 - Y]), S.dtype)
    logs, counts = logs if spread is None else spread(logs), log2_of_weights(valid, S.dtype)
    return logs.add_(counts) if logs.shape[1:] == S.shape else logs + counts.expand_as(S)


class Terms(NamedTuple):
    """The two parts of eq. loss-labels for each anchor, and for which anchors they are defined."""

    pos: Tensor  # (anchors,)  σ⁺(…)
    neg: Tensor  # (anchors,)  σ⁻(…)
    defined: Tensor  # (anchors,)  bool


def terms(row: Row, compared: Comparison) -> Terms:
    """σ⁺(Σ Y ρ⁺(S)) and σ⁻(Σ (1-Y) ρ⁻(S)) of each anchor.

    An anchor without candidates, or with an empty sum under a logarithm, is not defined.
    """
    S = compared.S
    if row.of_exponentials and not row.mean_positive:
        rhos: Any = (row.rho_pos, row.rho_neg)
        _, Y, valid, spread = compared  # without S, which the graph would keep after the backward pass

        def make_weights(S: Tensor) -> Tensor:
            return log2_weights(Comparison(S, Y, valid, spread), row.include_positive)

        of_pos, of_neg = log_sums(S, rhos, make_weights)
        pos, neg = row.sigma_pos.of_log(of_pos), row.sigma_neg.of_log(of_neg)  # type: ignore[attr-defined]
        return Terms(pos, neg, ~_lacks(row, is_empty(of_pos), is_empty(of_neg)))
    w = weights(compared, row.include_positive)
    of_pos = w.pos
    if row.mean_positive:
        total = sum_of(S, w.pos)
        of_pos = w.pos / _aligned(torch.where(total > 0, total, 1.0), S)
    pos = _sigma_of_sum(row.sigma_pos, row.rho_pos, S, of_pos)
    neg = _sigma_of_sum(row.sigma_neg, row.rho_neg, S, w.neg)
    return Terms(pos, neg, _is_defined(row, compared, w))


def _lacks(row: Row, no_positive: Tensor, no_negative: Tensor) -> Tensor:
    """(anchors,)  bool: whether something that the row needs is missing."""
    if row.needs_positive and row.needs_negative:
        return no_positive | no_negative
    if not (row.needs_positive or row.needs_negative):
        return no_positive & no_negative
    return no_positive if row.needs_positive else no_negative


def _is_defined(row: Row, compared: Comparison, w: Weights) -> Tensor:
    """(anchors,)  bool: whether there is what the row needs."""
    if not (row.needs_positive or row.needs_negative):
        return any_of(compared.S, compared.valid)
    return ~_lacks(row, ~any_of(compared.S, w.pos), ~any_of(compared.S, w.neg))


def any_of(S: Tensor, w: Tensor) -> Tensor:
    """(anchors,)  whether any candidate of an anchor counts; weights, or booleans, are broadcastable to S."""
    mask = (w if w.dtype == torch.bool else w > 0).view(torch.uint8)  # bytes: torch reads booleans ten times as slowly
    return mask.expand(S.shape[0], *mask.shape[1:]).flatten(1).amax(1).view(torch.bool)


def sum_of(S: Tensor, w: Tensor) -> Tensor:
    """(anchors,)  the sum over candidates of weights that are broadcastable to S, in its type of number."""
    return w.expand_as(S).sum(tuple(range(1, S.ndim)), dtype=S.dtype)


def _aligned(values: Tensor, S: Tensor) -> Tensor:
    """Values of anchors (anchors,), broadcastable to S."""
    return values.view(-1, *[1] * (S.ndim - 1))


def _sigma_of_sum(sigma: Function, rho: Function, S: Tensor, w: Tensor) -> Tensor:
    if isinstance(sigma, Log | Log1p) and isinstance(rho, Exponential | ArcExponential | CircleExponential):
        if not isinstance(rho, Exponential):
            S, rho = rho.exponent(S), Exponential(rho.scale)
        return sigma.of_log(log_sums(S, [rho], lambda S: log2_of_weights(w.expand_as(S)[None].clone(), S.dtype))[0])
    counts = w if w.dtype == torch.bool else w > 0
    # similarity 0 in place of what does not count: ρ or its derivative may be infinite there
    values = rho(torch.where(counts, S, 0.0))
    values = torch.where(w, values, 0.0) if w.dtype == torch.bool else w * values
    return sigma(values.sum(tuple(range(1, S.ndim))))


class PositiveTerms(NamedTuple):
    """τ(ρ⁺(s_p) + σ⁻(Σ ρ⁻)) of each candidate as a positive p, of a row with `each_positive`."""

    values: Tensor  # (anchors, …)
    weights: Tensor  # (anchors, …)  its label; 0 where it is no positive, or the anchor is not defined
    defined: Tensor  # (anchors,)  bool


def positive_terms(row: Row, compared: Comparison) -> PositiveTerms:
    """The terms of all positives, each with the whole negative part of its anchor."""
    S, w = compared.S, weights(compared)
    neg = _sigma_of_sum(row.sigma_neg, row.rho_neg, S, w.neg)
    defined = any_of(S, w.neg) if row.needs_negative else torch.ones_like(neg, dtype=torch.bool)
    counts = (w.pos > 0) & _aligned(defined, S)
    neg = _aligned(torch.where(defined, neg, 0.0), S)
    values = row.tau(row.rho_pos(torch.where(counts, S, 0.0)) + neg)
    return PositiveTerms(values, torch.where(counts, w.pos, 0.0).to(S.dtype), any_of(S, counts))


def loss_per_anchor(row: Row, compared: Comparison) -> tuple[Tensor, Tensor]:
    """eq. loss-labels for each anchor (0 where undefined), and where it is defined: both (anchors,)."""
    if row.is_quotient and compared.Y.dtype == torch.int64:
        losses = _compare_with_one_positive(row, compared.S, compared.Y)
        return losses, torch.ones_like(losses, dtype=torch.bool)
    if row.each_positive:
        values, weight, defined = positive_terms(row, compared)
        total = sum_of(compared.S, weight)
        share = weight / _aligned(torch.where(defined, total, 1.0), compared.S)
        return sum_of(compared.S, share * values), defined
    pos, neg, defined = terms(row, compared)
    if row.vanishes:
        return row.tau(pos + neg), defined
    # where a sum is empty, keep it and its gradient out of τ
    undefined = ~defined
    inside = (pos + neg).masked_fill(undefined, 0.0)
    return inside if row.tau is identity else row.tau(inside).masked_fill(undefined, 0.0), defined


def _compare_with_one_positive(row: Row, S: Tensor, positive: Tensor) -> Tensor:
    """(anchors,)  eq. loss-labels of a row that `is_quotient`, from the only `positive` (anchors, 1) of each anchor."""
    rho_pos, rho_neg = row.rho_pos, row.rho_neg
    assert isinstance(rho_pos, Exponential | ArcExponential), "a quotient of exponentials"
    assert isinstance(rho_neg, Exponential), "a quotient of exponentials"
    if row.include_positive:
        return row.tau(F.cross_entropy(rho_neg.log(S), positive.squeeze(1), reduction="none"))
    negatives = S.scatter(1, positive, -torch.inf)
    neg = log_sums(negatives, [rho_neg], lambda S: torch.zeros_like(S).unsqueeze(0))[0]
    return row.tau(neg - rho_pos.log(S.gather(1, positive)).squeeze(1))


class Totals(NamedTuple):
    """Sums over anchors, each to be divided by its own count; their quotients add up to the loss."""

    sums: Tensor  # (parts,)
    counts: Tensor  # (parts,)  int64
    anchors: Tensor  # ()  int64, the anchors for which the loss is defined


def join_totals(whole: Totals, prefixes: Sequence[Totals], weight: float) -> Totals:
    """The sums of the whole embedding and of its prefixes, each with its own count."""
    if not prefixes:
        return whole
    sums = torch.cat([whole.sums, *(weight * prefix.sums for prefix in prefixes)])
    return Totals(sums, torch.cat([whole.counts, *(prefix.counts for prefix in prefixes)]), whole.anchors)


def mean_over_anchors(row: Row, compared: Comparison) -> Totals:
    """eq. loss-final: the mean of loss(a) over the anchors for which it is defined."""
    losses, defined = loss_per_anchor(row, compared)
    anchors = defined.sum()
    return Totals(losses.sum().reshape(1), anchors.reshape(1), anchors)


def mean_over_positives(row: Row, compared: Comparison) -> Totals:
    """The mean over all positives of all anchors, of a row with `each_positive`."""
    values, weight, defined = positive_terms(row, compared)
    return Totals((weight * values).sum().reshape(1), (weight > 0).sum().reshape(1), defined.sum())


def mean_nonzero(row: Row, compared: Comparison) -> Totals:
    """The mean over positive terms plus the mean over non-zero negative terms, of an additive row."""
    S, (pos, neg) = compared.S, _additive_terms(row, compared)
    positives = (weights(compared).pos > 0).expand_as(S).sum()
    return Totals(torch.stack([pos.sum(), neg.sum()]), torch.stack([positives, (neg > 0).sum()]), _anchors(compared))


def mean_of_nonzero_terms(row: Row, compared: Comparison) -> Totals:
    """The mean over non-zero positive terms plus the mean over non-zero negative terms, of an additive row."""
    pos, neg = _additive_terms(row, compared)
    counts = torch.stack([(pos > 0).sum(), (neg > 0).sum()])
    return Totals(torch.stack([pos.sum(), neg.sum()]), counts, _anchors(compared))


def _additive_terms(row: Row, compared: Comparison) -> tuple[Tensor, Tensor]:
    w = weights(compared, row.include_positive)
    return w.pos * row.rho_pos(compared.S), w.neg * row.rho_neg(compared.S)


def _anchors(compared: Comparison) -> Tensor:
    return any_of(compared.S, compared.valid).sum()


def mean_over_present(row: Row, compared: Comparison) -> Totals:
    """Positive part averaged over anchors that have positives, negative part over all anchors."""
    pos, neg, defined = terms(row, compared)
    present = any_of(compared.S, weights(compared).pos)
    sums = torch.stack([torch.where(present, pos, 0.0).sum(), torch.where(defined, neg, 0.0).sum()])
    return Totals(sums, torch.stack([present.sum(), defined.sum()]), defined.sum())


Reduction = Callable[[Row, Comparison], Totals]
