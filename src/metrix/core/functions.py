"""The functions that fill the columns of Table 1: rho and sigma.

A sum of exponentials under a logarithm is evaluated in the log domain: `Log` and `Log1p` take the
logarithm of the sum, `Exponential` gives the logarithm of a term. Any other callable works too, and
is then applied as it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable


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
    def forward(ctx: FunctionCtx, S: Tensor, weights: Tensor, scale: float) -> Tensor:
        z = S * scale
        z.masked_fill_(weights == 0, -torch.inf)
        top = z.amax(-1, keepdim=True)
        top.masked_fill_(top == -torch.inf, 0.0)
        terms = z.sub_(top).exp_().mul_(weights)
        total = terms.sum(-1, keepdim=True)
        ctx.save_for_backward(terms, total)
        ctx.scale = scale  # type: ignore[attr-defined]
        return (top + total.log()).squeeze(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        terms, total = ctx.saved_tensors  # type: ignore[attr-defined]
        tiny = torch.finfo(total.dtype).tiny
        share = grad.unsqueeze(-1) * ctx.scale / total.clamp_min(tiny)  # type: ignore[attr-defined]
        return terms * share, None, None


def log_sum(S: Tensor, weights: Tensor, rho: Exponential) -> Tensor:
    """log Σ_k w_k ρ(S_k) over the last axis; -inf, with zero gradient, where all weights are zero.

    >>> log_sum(torch.zeros(1, 3), torch.ones(1, 3), Exponential(75.0)).exp()
    tensor([3.0000])
    """
    out: Tensor = _LogSum.apply(S, weights, rho.scale)
    return out if rho.margin == 0.0 else out - rho.scale * rho.margin
