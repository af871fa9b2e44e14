"""The functions that fill the columns of Table 1: rho and sigma.

A sum of exponentials under a logarithm is evaluated in the log domain: `Log` and `Log1p` take the
logarithm of the sum, `Exponential` gives the logarithm of a term. Any other callable works too, and
is then applied as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def identity(x: Tensor) -> Tensor:
    """τ(x) = σ(x) = x."""
    return x


def negated(x: Tensor) -> Tensor:
    """ρ⁺(x) = -x, contrastive."""
    return -x


@dataclass(frozen=True)
class Hinge:
    """ρ⁻(x) = [x - m]₊, contrastive; with m = 0, τ(x) = [x]₊, lifted structure."""

    margin: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.relu(x - self.margin)


@dataclass(frozen=True)
class Shortfall:
    """ρ⁺(x) = [m - x]₊, contrastive with positives that are drawn no closer than m."""

    margin: float

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.relu(self.margin - x)


@dataclass(frozen=True)
class Exponential:
    """ρ(x) = e^{scale (x - margin)}."""

    scale: float
    margin: float = 0.0

    def __call__(self, x: Tensor) -> Tensor:
        """ρ(x)."""
        return torch.exp(self.scale * (x - self.margin))


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

    def __call__(self, x: Tensor) -> Tensor:
        """σ(x)."""
        return self.weight * torch.log1p(x)

    def of_log(self, z: Tensor) -> Tensor:
        """σ(e^z) = weight · softplus(z); torch's softplus drops a term of 2e-9 past its threshold."""
        return self.weight * torch.logaddexp(z, z.new_zeros(()))


class _LogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, S: Tensor, weights: Tensor, scale: float) -> Tensor:
        z = S * scale
        z.masked_fill_(weights == 0, -torch.inf)
        top = z.amax(-1, keepdim=True)
        top.masked_fill_(top == -torch.inf, 0.0)
        terms = z.sub_(top).exp_().mul_(weights)
        total = terms.sum(-1, keepdim=True)
        ctx.save_for_backward(terms, total)
        ctx.scale = scale
        return (top + total.log()).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        terms, total = ctx.saved_tensors
        tiny = torch.finfo(total.dtype).tiny
        share = grad.unsqueeze(-1) * ctx.scale / total.clamp_min(tiny)
        return terms * share, None, None


def log_sum(S: Tensor, weights: Tensor, rho: Exponential) -> Tensor:
    """log Σ_k w_k ρ(S_k) over the last axis; -inf, with zero gradient, where all weights are zero.

    >>> round(float(log_sum(torch.zeros(1, 3), torch.ones(1, 3), Exponential(75.0)).exp()), 4)
    3.0
    """
    out: Tensor = _LogSum.apply(S, weights, rho.scale)
    return out if rho.margin == 0.0 else out - rho.scale * rho.margin


class _TwoLogSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, S: Tensor, pos: Tensor, neg: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        z = S * scale if scale != 1.0 else S
        top = z.amax(-1, keepdim=True)
        terms = torch.sub(z, top).exp_()
        totals = [(terms * w).sum(-1, keepdim=True) for w in (pos, neg)]
        ctx.save_for_backward(terms, pos, neg, *totals)
        ctx.scale = scale
        log_pos, log_neg = ((top + total.log()).squeeze(-1) for total in totals)
        return log_pos, log_neg

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_pos: Tensor, grad_neg: Tensor) -> tuple[Tensor, None, None, None]:
        terms, pos, neg, *totals = ctx.saved_tensors
        tiny = torch.finfo(terms.dtype).tiny
        share_pos, share_neg = (
            grad.unsqueeze(-1) * ctx.scale / total.clamp_min(tiny)
            for grad, total in zip((grad_pos, grad_neg), totals, strict=True)
        )
        return torch.addcmul(pos * share_pos, neg, share_neg).mul_(terms), None, None, None


def two_log_sums(S: Tensor, pos: Tensor, neg: Tensor, rho: Exponential) -> tuple[Tensor, Tensor]:
    """`log_sum` with each of two weights, computing the exponentials once; only where `shares_exponential`."""
    found: tuple[Tensor, Tensor] = _TwoLogSums.apply(S, pos, neg, rho.scale)
    shift = rho.scale * rho.margin
    return found if shift == 0.0 else (found[0] - shift, found[1] - shift)


def shares_exponential(rho_pos: object, rho_neg: object) -> bool:
    """Whether both sums can share their exponentials: they have the same ρ, and none underflows beside another.

    The terms of a row lie within e^{2 |scale|} of each other, and float32 holds e^{87}.
    """
    return rho_pos is rho_neg and isinstance(rho_pos, Exponential) and abs(rho_pos.scale) <= 40.0
