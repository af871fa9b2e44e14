"""Heads f_m, `head(z)`: a map (n, c, h, w) or tokens (n, p, c) to a unit embedding (n, d).

    avg, max, avg+max    `metrix.core.head.PoolLinear`, which mixup has closed forms for
    cls                  the class token; `Embedder.features` already returns only it, so mixing is linear
    gem                  generalised mean, (mean x^p)^(1/p) with p learned: 1 is avg, large p is max
    attention            a weighted average whose weights the features decide

gem and attention turn the positions into one vector; a `PoolLinear` over that single position ends the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metrix.core.choices import METRIX_PAPER, Choice, by_name, find
from metrix.core.head import PoolLinear, positions


class GeneralisedMean(nn.Module):
    """(mean_p x_p^p)^(1/p) per channel, with one learned exponent that starts at 3.

    The mean is of values raised to at least `floor`: a power needs positive values, which maps after a
    ReLU have; negative token values count as `floor`.

    >>> GeneralisedMean()(torch.rand(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, exponent: float = 3.0, floor: float = 1e-6) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(exponent))
        self.floor = floor

    def forward(self, features: Tensor) -> Tensor:
        """Features (n, p, c) or a map (n, c, h, w) to vectors (n, c)."""
        x = positions(features).clamp_min(self.floor)  # (n, p, c)
        # x^p overflows half precision and loses small values: log-sum-exp is the same mean without powers.
        log_mean = torch.logsumexp(self.exponent * x.float().log(), dim=1) - torch.tensor(x.shape[1]).log()
        return (log_mean / self.exponent).exp().to(x.dtype)


class AttentionPool(nn.Module):
    """Σ_p a_p x_p with a = softmax_p(x_p · query / sqrt(c)).

    The query starts at zero, so training starts from average pooling.

    >>> AttentionPool(8)(torch.rand(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Features (n, p, c) or a map (n, c, h, w) to vectors (n, c)."""
        x = positions(features)  # (n, p, c)
        attention = (x @ (self.query / self.query.numel() ** 0.5)).softmax(dim=1)  # (n, p)
        return torch.einsum("np,npc->nc", attention, x)


@dataclass(frozen=True)
class Pooling(Choice):
    """A pooling head by name; `build(channels, dim)` makes it."""

    build: Callable[[int, int], nn.Module]


POOLS: dict[str, Pooling] = by_name(
    Pooling(
        "avg+max",
        "average plus maximum over positions",
        METRIX_PAPER,
        lambda channels, dim: PoolLinear(channels, dim, pool="avg+max"),
    ),
    Pooling(
        "avg",
        "average over positions",
        "Lin et al., ICLR 2014",
        lambda channels, dim: PoolLinear(channels, dim, pool="avg"),
    ),
    Pooling(
        "max",
        "maximum over positions",
        "Tolias et al., ICLR 2016",
        lambda channels, dim: PoolLinear(channels, dim, pool="max"),
    ),
    Pooling(
        "gem",
        "generalised mean with a learnt exponent",
        "Radenović et al., TPAMI 2018",
        lambda channels, dim: nn.Sequential(GeneralisedMean(), PoolLinear(channels, dim, pool="avg")),
    ),
    Pooling(
        "cls",
        "the class token, of a transformer only",
        "Dosovitskiy et al., ICLR 2021",
        lambda channels, dim: PoolLinear(channels, dim, pool="avg"),  # the mean of one position is that position
    ),
    Pooling(
        "attention",
        "average weighted by a learnt query",
        "Ilse et al., ICML 2018",
        lambda channels, dim: nn.Sequential(AttentionPool(channels), PoolLinear(channels, dim, pool="avg")),
    ),
)


def build_head(pool: str, channels: int, dim: int) -> nn.Module:
    """The head called `pool`, from `channels` to a unit embedding of `dim`.

    >>> build_head("gem", 8, 4)(torch.rand(2, 8, 7, 7)).shape
    torch.Size([2, 4])
    """
    return find("pool", pool, POOLS).build(channels, dim)
