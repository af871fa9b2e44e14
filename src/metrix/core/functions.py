"""The functions that fill the columns of Table 1: rho and sigma.

A sum of exponentials under a logarithm is evaluated in the log domain: `Log` and `Log1p` take the
logarithm of the sum, `Exponential` gives the logarithm of a term. Any other callable works too, and
is then applied as it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin
from metrix.errors import check_number


def identity(x: Tensor) -> Tensor:
    """τ(x) = σ(x) = x."""
    return x


def negated(x: Tensor) -> Tensor:
    """ρ⁺(x) = -x, contrastive."""
    return -x


def softplus(x: Tensor) -> Tensor:
    """τ(x) = log(1 + e^x), cross-entropy with a margin."""
    return torch.logaddexp(x, x.new_zeros(()))


@dataclass(frozen=True)
class Linear:
    """ρ(x) = scale · x."""

    scale: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return self.scale * x


@dataclass(frozen=True)
class Hinge:
    """ρ⁻(x) = [x - m]₊, contrastive; with m = 0, τ(x) = [x]₊, lifted structure."""

    margin: float = 0.0

    def __post_init__(self) -> None:
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.relu(x - self.margin)


@dataclass(frozen=True)
class Shortfall:
    """ρ⁺(x) = [m - x]₊, contrastive with positives that are drawn no closer than m."""

    margin: float

    def __post_init__(self) -> None:
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.relu(self.margin - x)


@dataclass(frozen=True)
class Exponential:
    """ρ(x) = e^{scale (x - margin)}."""

    scale: float
    margin: float = 0.0

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.exp(self.log(x))

    def log(self, x: Tensor) -> Tensor:
        """log ρ(x)."""
        return self.scale * (x - self.margin if self.margin else x)


@dataclass(frozen=True)
class ArcExponential:
    """ρ(x) = e^{scale · cos(θ + margin)}, where x = cos θ and the margin is in radians.

    Past θ + margin = π the cosine would rise again: there it is cos θ - margin · sin(margin).
    """

    scale: float
    margin: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def exponent(self, x: Tensor) -> Tensor:
        """cos(θ + margin)."""
        turned = turn(x, self.margin)
        return torch.where(x >= -math.cos(self.margin), turned, x - self.margin * math.sin(self.margin))

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.exp(self.log(x))

    def log(self, x: Tensor) -> Tensor:
        """log ρ(x)."""
        return self.scale * self.exponent(x)


@dataclass(frozen=True)
class ArcLinear:
    """ρ(x) = scale · cos(θ + margin), where x = cos θ and the margin is in radians."""

    scale: float
    margin: float

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return self.scale * turn(x, self.margin)


def turn(x: Tensor, angle: float) -> Tensor:
    """cos(θ + angle) of cosines x = cos θ."""
    squared = 1.0 - x.square()
    apart = squared > 4.0 * torch.finfo(x.dtype).eps  # the root has no derivative at zero
    sine = torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0)
    return x * math.cos(angle) - sine * math.sin(angle)


@dataclass(frozen=True)
class Attraction:
    """ρ⁺(x) = -(radius / max(d, radius))^decay, with the distance d = √(2-2x) of unit vectors: a well, flat within."""

    radius: float
    decay: float

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        nearness = self.radius**2 / (2.0 - 2.0 * x).clamp_min(self.radius**2)
        return -nearness.pow(0.5 * self.decay)


@dataclass(frozen=True)
class Repulsion:
    """ρ⁻(x) = (radius / min(d, radius))^decay, with the distance d = √(2-2x) of unit vectors: a peak, flat without.

    The peak is infinite. From half of the radius inwards its tangent, as a function of x, takes its place, so that
    value and gradient stay finite for equal vectors, in half precision, too, and still push them apart.
    """

    radius: float
    decay: float

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        squared, power = self.radius**2, 0.5 * self.decay
        nearest = squared / 4.0
        distance = 2.0 - 2.0 * x  # squared
        steepness = power * 4.0**power / nearest  # -dρ/d(d²) at the nearest
        peak: Tensor = (squared / distance.clamp(nearest, squared)).pow(power)
        within: Tensor = steepness * torch.relu(nearest - distance)
        return peak + within


@dataclass(frozen=True)
class CircleExponential:
    """ρ⁺(x) = e^{-scale · [1 + m - x]₊ (x - 1 + m)} or ρ⁻(x) = e^{scale · [x + m]₊ (x - m)}, circle loss.

    The factors [·]₊ say how far a similarity is from its optimum; no gradient goes through them.
    """

    scale: float
    margin: float
    of_positives: bool

    def __post_init__(self) -> None:
        check_number("scale", self.scale)
        check_number("margin", self.margin)

    def exponent(self, x: Tensor) -> Tensor:
        """What `scale` multiplies."""
        fixed, m = x.detach(), self.margin
        if self.of_positives:
            return torch.relu(1.0 + m - fixed) * (1.0 - m - x)
        return torch.relu(fixed + m) * (x - m)

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.exp(self.scale * self.exponent(x))


@dataclass(frozen=True)
class Log:
    """σ(x) = sign · log(x), undefined for an empty sum."""

    sign: float = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        """σ(x)."""
        return self.sign * torch.log(x)

    def of_log(self, z: Tensor) -> Tensor:
        """σ(e^z)."""
        return z if self.sign == 1.0 else self.sign * z


@dataclass(frozen=True)
class Log1p:
    """σ(x) = weight · log(1 + x)."""

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_number("weight", self.weight)

    def __call__(self, x: Tensor) -> Tensor:
        """σ(x)."""
        return self.weight * torch.log1p(x)

    def of_log(self, z: Tensor) -> Tensor:
        """σ(e^z) = weight · softplus(z); torch's softplus drops a term of 2e-9 past its threshold."""
        # e^z of an empty sum, z = -inf, is 0 as that of -10⁴ is, and logaddexp has no second derivative at infinity
        return self.weight * torch.logaddexp(z.clamp_min(-1e4), z.new_zeros(()))


def _plain_log_sum(S: Tensor, weights: Tensor, scale: float) -> Tensor:
    """log Σ w e^{scale S}, and -inf with zero gradient where all weights are zero."""
    counts = weights > 0
    z = torch.where(counts, S * scale + torch.where(counts, weights, 1.0).log(), -torch.inf)
    some = counts.any(-1)
    # a row without any has no derivative: keep it away from logsumexp
    return torch.where(some, torch.where(some.unsqueeze(-1), z, 0.0).logsumexp(-1), -torch.inf)


def _brought_to_one(weights: Tensor, total: Tensor) -> tuple[Tensor, Tensor] | None:
    """Weights over the largest of their row, where a row's sum of terms vanishes in rounding; and the log of that.

    A weight as small as λ = 1e-45 does so, times any term below 1. None where no sum does, as is usual.
    """
    least = 2.0**24 * torch.finfo(total.dtype).tiny
    if total.numel() == 0 or float(total.amin()) >= least:
        return None
    vanishes = total < least
    largest = weights.amax(-1, keepdim=True)
    largest = torch.where(vanishes & (largest > 0), largest, 1.0)
    return weights / largest, largest.log()


class _LogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, S: Tensor, weights: Tensor, scale: float) -> Tensor:
        z = S * scale
        z.masked_fill_(weights == 0, -torch.inf)
        top = z.amax(-1, keepdim=True)
        top.masked_fill_(top == -torch.inf, 0.0)
        terms = z.sub_(top).exp_().mul_(weights)
        total = terms.sum(-1, keepdim=True)
        scaled = _brought_to_one(weights, total)
        if scaled is not None:
            terms = (S * scale - top).masked_fill_(weights == 0, -torch.inf).exp_().mul_(scaled[0])
            total, top = terms.sum(-1, keepdim=True), top + scaled[1]
        ctx.save_for_backward(S, weights, terms, total)
        ctx.scale = scale
        return (top + total.log()).squeeze(-1)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        S, weights, terms, total = ctx.saved_tensors
        if torch.is_grad_enabled():
            return twin_gradients(lambda S: _plain_log_sum(S, weights, ctx.scale), [S], [grad])[0], None, None
        tiny = torch.finfo(total.dtype).tiny
        share = grad.unsqueeze(-1) * ctx.scale / total.clamp_min(tiny)
        return terms * share, None, None


def log_sum(S: Tensor, weights: Tensor, rho: Exponential) -> Tensor:
    """log Σ_k w_k ρ(S_k) over the last axis; -inf, with zero gradient, where all weights are zero.

    >>> round(float(log_sum(torch.zeros(1, 3), torch.ones(1, 3), Exponential(75.0)).exp()), 4)
    3.0
    """
    out: Tensor = (_plain_log_sum if use_twin() else _LogSum.apply)(S, weights, rho.scale)
    return out if rho.margin == 0.0 else out - rho.scale * rho.margin


def _plain_two_log_sums(S: Tensor, pos: Tensor, neg: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return _plain_log_sum(S, pos, scale), _plain_log_sum(S, neg, scale)


class _TwoLogSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, S: Tensor, pos: Tensor, neg: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        z = S * scale if scale != 1.0 else S
        top = z.amax(-1, keepdim=True)
        terms = torch.sub(z, top).exp_()
        weights, tops = [pos, neg], [top, top]
        totals = [(terms * w).sum(-1, keepdim=True) for w in weights]
        for k in range(2):
            scaled = _brought_to_one(weights[k], totals[k])
            if scaled is not None:
                weights[k], tops[k] = scaled[0], top + scaled[1]
                totals[k] = (terms * weights[k]).sum(-1, keepdim=True)
        ctx.save_for_backward(S, pos, neg, terms, *weights, *totals)
        ctx.scale = scale
        log_pos, log_neg = ((top + total.log()).squeeze(-1) for top, total in zip(tops, totals, strict=True))
        return log_pos, log_neg

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, grad_pos: Tensor, grad_neg: Tensor) -> tuple[Tensor | None, None, None, None]:
        S, pos, neg, terms, w_pos, w_neg, *totals = ctx.saved_tensors
        if torch.is_grad_enabled():
            both = twin_gradients(lambda S: _plain_two_log_sums(S, pos, neg, ctx.scale), [S], [grad_pos, grad_neg])
            return both[0], None, None, None
        tiny = torch.finfo(terms.dtype).tiny
        share_pos, share_neg = (
            grad.unsqueeze(-1) * ctx.scale / total.clamp_min(tiny)
            for grad, total in zip((grad_pos, grad_neg), totals, strict=True)
        )
        return torch.addcmul(w_pos * share_pos, w_neg, share_neg).mul_(terms), None, None, None


def two_log_sums(S: Tensor, pos: Tensor, neg: Tensor, rho: Exponential) -> tuple[Tensor, Tensor]:
    """`log_sum` with each of two weights, computing the exponentials once; only where `shares_exponential`."""
    found: tuple[Tensor, Tensor] = (_plain_two_log_sums if use_twin() else _TwoLogSums.apply)(S, pos, neg, rho.scale)
    shift = rho.scale * rho.margin
    return found if shift == 0.0 else (found[0] - shift, found[1] - shift)


def shares_exponential(rho_pos: object, rho_neg: object) -> bool:
    """Whether both sums can share their exponentials: they have the same ρ, and none underflows beside another.

    The terms of a row lie within e^{2 |scale|} of each other, and float32 holds e^{87}.
    """
    return rho_pos is rho_neg and isinstance(rho_pos, Exponential) and abs(rho_pos.scale) <= 40.0
