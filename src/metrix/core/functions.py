"""The functions that fill the columns of Table 1: rho and sigma.

A sum of exponentials under a logarithm is evaluated in the log domain: `Log` and `Log1p` take the
logarithm of the sum, `Exponential` gives the logarithm of a term. Any other callable works too, and
is then applied as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.compute.derivatives import in_full_precision, twin_gradients, use_twin
from metrix.errors import check_number

# The logarithm of an empty sum. It is finite, so that no gradient is the difference of two infinities, and far below
# any other: every number that is added to it vanishes in rounding.
EMPTY = -1e30
NOTHING = torch.tensor(EMPTY)  # a number would become a tensor in every call
# From here on log(1 + e^x) is x in float64, too; torch's own threshold, 20, drops a term of 2e-9.
SOFTPLUS_IS_LINEAR = 60.0


def identity(x: Tensor) -> Tensor:
    """τ(x) = σ(x) = x."""
    return x


def negated(x: Tensor) -> Tensor:
    """ρ⁺(x) = -x, contrastive."""
    return -x


def softplus(x: Tensor) -> Tensor:
    """τ(x) = log(1 + e^x), cross-entropy with a margin."""
    return F.softplus(x, threshold=SOFTPLUS_IS_LINEAR)


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
        """σ(e^z) = weight · log(1 + e^z)."""
        value = softplus(z)
        return value if self.weight == 1.0 else self.weight * value


def _exponents(S: Tensor, weights: Tensor, scale: float, shift: float) -> Tensor:
    """log(w e^{scale S + shift}), and `EMPTY` where w is 0."""
    if weights.dtype == torch.bool:
        return torch.where(weights, torch.rsub(S, shift, alpha=-scale), NOTHING)
    z = torch.add(weights.log().clamp_min_(EMPTY), S, alpha=scale)
    return z + shift if shift else z


def _plain_log_sum(S: Tensor, weights: Tensor, scale: float, shift: float) -> Tensor:
    return _exponents(S, weights, scale, shift).logsumexp(tuple(range(1, S.ndim)))


class _LogSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, S: Tensor, settings: Sequence[tuple[float, float]], *weights: Tensor) -> tuple[Tensor, ...]:
        axes, kept, logs = tuple(range(1, S.ndim)), [], []
        for (scale, shift), w in zip(settings, weights, strict=True):
            z = _exponents(S, w, scale, shift)
            top = z.amax(axes, keepdim=True)
            terms = z.sub_(top).exp_()  # the largest is 1; where nothing counts all are, and σ lets no gradient through
            total = terms.sum(axes, keepdim=True)
            kept += [terms, total]
            logs.append((top + total.log()).flatten())
        ctx.save_for_backward(S, *weights, *kept)
        ctx.settings = settings
        return tuple(logs)

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (S, *saved), settings = ctx.saved_tensors, ctx.settings
        weights, terms, totals = saved[: len(settings)], saved[len(settings) :: 2], saved[len(settings) + 1 :: 2]
        nothing = (None,) * (1 + len(weights))
        if torch.is_grad_enabled():
            return (*twin_gradients(lambda S: _plain_log_sums(S, settings, *weights), [S], grads), *nothing)
        shares = [
            (grad.view_as(total) * scale).div_(total)
            for grad, total, (scale, _) in zip(grads, totals, settings, strict=True)
        ]
        out = terms[0] * shares[0]
        for term, share in zip(terms[1:], shares[1:], strict=True):
            out.addcmul_(term, share)
        return (out, *nothing)


def _plain_log_sums(S: Tensor, settings: Sequence[tuple[float, float]], *weights: Tensor) -> tuple[Tensor, ...]:
    return tuple(_plain_log_sum(S, w, *setting) for setting, w in zip(settings, weights, strict=True))


def log_sums(S: Tensor, *sums: tuple[Tensor, Exponential]) -> list[Tensor]:
    """log Σ w ρ(S) over all axes but the first, for each w and ρ: (anchors,); about `EMPTY` where nothing counts.

    Args:
        S: (anchors, …), similarities.
        sums: weights, broadcastable to S: numbers from 0, or booleans that say which terms count; and exponentials.

    >>> round(float(log_sums(torch.zeros(1, 3), (torch.ones(1, 3), Exponential(75.0)))[0].exp()), 4)
    3.0
    """
    shifts = [-rho.scale * rho.margin for _, rho in sums]
    inside = [weights.dtype == torch.bool for weights, _ in sums]  # else it is cheaper to shift the sum
    settings = [(rho.scale, shift if at else 0.0) for (_, rho), shift, at in zip(sums, shifts, inside, strict=True)]
    apply = _plain_log_sums if use_twin() or S.numel() == 0 else _LogSums.apply
    logs = apply(S, settings, *(weights for weights, _ in sums))
    return [log if at or not shift else log + shift for log, shift, at in zip(logs, shifts, inside, strict=True)]


class _TwoLogSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, S: Tensor, first: Tensor, second: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        z = S * scale
        top = z.amax(1, keepdim=True)
        terms = z.sub_(top).exp_()
        totals = [(terms * counts).sum(1, keepdim=True) for counts in (first, second)]
        logs = [torch.add(top, total.log()).clamp_min_(EMPTY).squeeze(1) for total in totals]
        tiny = torch.finfo(S.dtype).tiny  # of an empty sum, whose gradient is zero
        ctx.save_for_backward(S, first, second, terms, *(total.clamp_min_(tiny) for total in totals))
        ctx.scale = scale
        return logs[0], logs[1]

    @staticmethod
    @in_full_precision
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        S, first, second, terms, *totals = ctx.saved_tensors
        if torch.is_grad_enabled():
            both = twin_gradients(lambda S: _plain_two_log_sums(S, first, second, ctx.scale), [S], grads)
            return both[0], None, None, None
        shares = [(grad.unsqueeze(1) * ctx.scale).div_(total) for grad, total in zip(grads, totals, strict=True)]
        return (first * shares[0]).addcmul_(second, shares[1]).mul_(terms), None, None, None


def _plain_two_log_sums(S: Tensor, first: Tensor, second: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return _plain_log_sum(S, first, scale, 0.0), _plain_log_sum(S, second, scale, 0.0)


def two_log_sums(S: Tensor, first: Tensor, second: Tensor, rho: Exponential) -> tuple[Tensor, Tensor]:
    """`log_sums` over each of two sets of candidates (anchors, candidates), which share their exponentials.

    No term may underflow beside another: see `underflows`.
    """
    plain = use_twin() or S.numel() == 0
    found: tuple[Tensor, Tensor] = (_plain_two_log_sums if plain else _TwoLogSums.apply)(S, first, second, rho.scale)
    shift = rho.scale * rho.margin
    return found if shift == 0.0 else (found[0] - shift, found[1] - shift)


def underflows(rho: Exponential) -> bool:
    """Whether ρ(S) of similarities may vanish beside another: they lie within e^{2 scale}, and float32 holds e^{87}."""
    return abs(rho.scale) > 40.0
