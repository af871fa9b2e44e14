"""The generic loss: one function of similarities, labels and which candidates count.

eq. loss-labels and loss-mixed, for an anchor a with candidates k:

    loss(a) = τ( σ⁺( Σ_k Y ρ⁺(S) ) + σ⁻( Σ_k (1-Y) ρ⁻(S) ) )

    S      (a, k)   similarity of anchor a to its k candidates
    Y      (a, k)   how positive each candidate is, in [0, 1]
    valid  (a, k)   which candidates count

A loss is a `Row` of five functions. Clean and mixed losses differ only in S, Y and valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.functions import (
    ArcExponential,
    CircleExponential,
    Exponential,
    Log,
    Log1p,
    identity,
    log_sum,
    shares_exponential,
    two_log_sums,
)

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

    @cached_property
    def needs_positive(self) -> bool:
        """Whether σ⁺ of an empty sum is undefined, as it is for a logarithm, and a mean of none."""
        return self.mean_positive or self.each_positive or not _finite_at_zero(self.sigma_pos)

    @cached_property
    def needs_negative(self) -> bool:
        """Whether σ⁻ of an empty sum is undefined."""
        return not _finite_at_zero(self.sigma_neg)

    @property
    def cancels(self) -> bool:
        """Whether labels that are all alike leave a constant: -log Σ Y ρ + log Σ (1-Y) ρ with one ρ."""
        pos, neg = self.sigma_pos, self.sigma_neg
        if self.include_positive or not (isinstance(pos, Log) and isinstance(neg, Log)):
            return False
        return pos.sign == -neg.sign and self.rho_pos == self.rho_neg

    @cached_property
    def of_exponentials(self) -> bool:
        """Whether both sums are of exponentials under a logarithm."""
        return (
            not (self.mean_positive or self.each_positive)
            and isinstance(self.sigma_pos, Log | Log1p)
            and isinstance(self.sigma_neg, Log | Log1p)
            and isinstance(self.rho_pos, Exponential | ArcExponential)
            and isinstance(self.rho_neg, Exponential)
        )

    @cached_property
    def is_cross_entropy(self) -> bool:
        """Whether it is cross-entropy where an anchor has one positive p: -log ρ(s_p) + log Σ ρ(s) over all."""
        sigmas = self.sigma_pos, self.sigma_neg
        one_rho = isinstance(self.rho_pos, Exponential) and self.rho_pos == self.rho_neg
        return self.include_positive and self.tau is identity and sigmas == (Log(-1.0), Log()) and one_rho


def _finite_at_zero(sigma: Function) -> bool:
    with torch.no_grad():
        return math.isfinite(float(sigma(torch.zeros(()))))


class Weights(NamedTuple):
    """What each candidate weighs in the two sums, zero where it does not count: (anchors, candidates)."""

    pos: Tensor
    neg: Tensor


class Terms(NamedTuple):
    """The two parts of eq. loss-labels for each anchor, and for which anchors they are defined."""

    pos: Tensor  # (anchors,)  σ⁺(…)
    neg: Tensor  # (anchors,)  σ⁻(…)
    defined: Tensor  # (anchors,)  bool


def weights(Y: Tensor, valid: Tensor, include_positive: bool = False) -> Weights:
    """Y and 1-Y where valid, else 0."""
    counts = valid.to(Y.dtype)
    pos = Y * counts
    return Weights(pos, counts if include_positive else counts - pos)


def terms(row: Row, S: Tensor, w: Weights) -> Terms:
    """σ⁺(Σ Y ρ⁺(S)) and σ⁻(Σ (1-Y) ρ⁻(S)) of each anchor.

    An anchor without candidates, or with an empty sum under a logarithm, is not defined.
    """
    of_logs = getattr(row.sigma_pos, "of_log", None), getattr(row.sigma_neg, "of_log", None)
    if not row.mean_positive and None not in of_logs and shares_exponential(row.rho_pos, row.rho_neg):
        logs = two_log_sums(S, w.pos, w.neg, row.rho_pos)  # type: ignore[arg-type]
        pos, neg = (of_log(z) for of_log, z in zip(of_logs, logs, strict=True))  # type: ignore[misc]
    else:
        of_pos = w.pos
        if row.mean_positive:
            total = of_pos.sum(-1, keepdim=True)
            of_pos = of_pos / torch.where(total > 0, total, 1.0)
        pos = _sigma_of_sum(row.sigma_pos, row.rho_pos, S, of_pos)
        neg = _sigma_of_sum(row.sigma_neg, row.rho_neg, S, w.neg)
    has_pos, has_neg = w.pos.sum(-1) > 0, w.neg.sum(-1) > 0
    if row.needs_positive and row.needs_negative:
        return Terms(pos, neg, has_pos & has_neg)
    defined = has_pos if row.needs_positive else has_neg if row.needs_negative else has_pos | has_neg
    return Terms(pos, neg, defined)


def _sigma_of_sum(sigma: Function, rho: Function, S: Tensor, w: Tensor) -> Tensor:
    of_log = getattr(sigma, "of_log", None)
    if of_log is not None and isinstance(rho, Exponential | ArcExponential | CircleExponential):
        if not isinstance(rho, Exponential):
            S, rho = rho.exponent(S), Exponential(rho.scale)
        value: Tensor = of_log(log_sum(S, w, rho))
        return value
    # similarity 0 in place of what does not count: ρ or its derivative may be infinite there
    return sigma((w * rho(torch.where(w > 0, S, 0.0))).sum(-1))


class PositiveTerms(NamedTuple):
    """τ(ρ⁺(s_p) + σ⁻(Σ ρ⁻)) of each positive p of a row with `each_positive`."""

    anchors: Tensor  # (positives,)  whose positive it is
    values: Tensor  # (positives,)
    weights: Tensor  # (positives,)  its label
    defined: Tensor  # (anchors,)  bool


def positive_terms(row: Row, S: Tensor, w: Weights) -> PositiveTerms:
    """The terms of all positives, each with the whole negative part of its anchor."""
    neg = _sigma_of_sum(row.sigma_neg, row.rho_neg, S, w.neg)
    defined = w.neg.sum(-1) > 0 if row.needs_negative else torch.ones_like(neg, dtype=torch.bool)
    neg = torch.where(defined, neg, 0.0)
    counts = (w.pos > 0) & defined.unsqueeze(-1)
    anchors = counts.nonzero().select(1, 0)
    number = counts.reshape(-1).nonzero().squeeze(1)
    s, weight = (x.reshape(-1).index_select(0, number) for x in (S, w.pos))
    values = row.tau(row.rho_pos(s) + neg.index_select(0, anchors))
    return PositiveTerms(anchors, values, weight, counts.any(-1))


def _mean_of_positives(row: Row, S: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    """The mean, weighted by labels, over the positives of each anchor (0 where undefined), and where it is defined."""
    anchors, values, weights, defined = positive_terms(row, S, w)
    total = weights.new_zeros(len(S)).index_add_(0, anchors, weights)
    share = weights / total.index_select(0, anchors)
    return values.new_zeros(len(S)).index_add(0, anchors, share * values), defined


def loss_per_anchor(row: Row, S: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    """eq. loss-labels for each anchor (0 where undefined), and where it is defined: both (anchors,)."""
    if row.each_positive:
        return _mean_of_positives(row, S, w)
    pos, neg, defined = terms(row, S, w)
    if bool(defined.all()):
        return row.tau(pos + neg), defined
    # the sum may hold inf - inf elsewhere: keep it, and its gradient, out of τ
    pos, neg = torch.where(defined, pos, 0.0), torch.where(defined, neg, 0.0)
    return torch.where(defined, row.tau(pos + neg), 0.0), defined


class Totals(NamedTuple):
    """Sums over anchors, each to be divided by its own count; their quotients add up to the loss."""

    sums: Tensor  # (parts,)
    counts: Tensor  # (parts,)  int64
    anchors: Tensor  # ()  int64, the anchors for which the loss is defined


def mean_over_anchors(row: Row, S: Tensor, w: Weights) -> Totals:
    """eq. loss-final: the mean of loss(a) over the anchors for which it is defined."""
    losses, defined = loss_per_anchor(row, S, w)
    anchors = defined.sum()
    return Totals(losses.sum().reshape(1), anchors.reshape(1), anchors)


def mean_with_one_positive(row: Row, S: Tensor, positive: Tensor) -> Totals:
    """`mean_over_anchors` of a row `of_exponentials`, where each anchor has one positive and some negatives.

    `positive` (anchors,) says which candidate it is; all others are negatives. Nothing is weighed and every anchor is
    defined, which spares most of the operations.
    """
    exponents: Tensor = row.rho_neg.log(S)  # type: ignore[attr-defined]
    if row.is_cross_entropy:
        value = F.cross_entropy(exponents, positive, reduction="sum")
    else:
        place = positive.unsqueeze(1)
        if not row.include_positive:
            exponents = exponents.scatter(1, place, -torch.inf)
        pos = row.sigma_pos.of_log(row.rho_pos.log(S.gather(1, place)))  # type: ignore[attr-defined]
        neg = row.sigma_neg.of_log(exponents.logsumexp(1, keepdim=True))  # type: ignore[attr-defined]
        value = row.tau(pos + neg).sum()
    count = torch.full((1,), len(S), device=S.device)
    return Totals(value.reshape(1), count, count[0])


def mean_over_positives(row: Row, S: Tensor, w: Weights) -> Totals:
    """The mean over all positives of all anchors, of a row with `each_positive`."""
    _, values, weights, defined = positive_terms(row, S, w)
    return Totals((weights * values).sum().reshape(1), values.new_tensor([len(values)]).long(), defined.sum())


def mean_nonzero(row: Row, S: Tensor, w: Weights) -> Totals:
    """The mean over positive terms plus the mean over non-zero negative terms, of an additive row."""
    pos, neg = w.pos * row.rho_pos(S), w.neg * row.rho_neg(S)
    counts = torch.stack([(w.pos > 0).sum(), (neg > 0).sum()])
    anchors = ((w.pos + w.neg).sum(-1) > 0).sum()
    return Totals(torch.stack([pos.sum(), neg.sum()]), counts, anchors)


def mean_over_present(row: Row, S: Tensor, w: Weights) -> Totals:
    """Positive part averaged over anchors that have positives, negative part over all anchors."""
    pos, neg, defined = terms(row, S, w)
    present = w.pos.sum(-1) > 0
    sums = torch.stack([torch.where(present, pos, 0.0).sum(), torch.where(defined, neg, 0.0).sum()])
    return Totals(sums, torch.stack([present.sum(), defined.sum()]), defined.sum())


Reduction = Callable[[Row, Tensor, Weights], Totals]
