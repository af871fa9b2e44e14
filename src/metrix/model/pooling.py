"""Heads f_m: from a map (n, c, h, w) or tokens (n, p, c) to unit embeddings (n, d). A head is one entry of `POOLS`.

    avg, max, avg+max    `metrix.core.head.PoolLinear`, for which feature mixup has fast paths
    cls                  the class token, which is all that `Embedder.features` returns for this head
    gem                  generalised mean (mean x^p)^(1/p) with learnt p; p = 1 is the average, p → ∞ the maximum
    attention            average with learnt weights

The last two pool to one vector (n, c), followed by a `PoolLinear` of that single position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from metrix.core.choices import METRIX_PAPER, Choice, by_name, find
from metrix.core.head import PoolLinear, positions


class GeneralisedMean(nn.Module):
    """Generalised mean over positions, (mean x^p)^(1/p) per channel, with one learnt exponent p.

    Powers need positive values, as after a ReLU; values below `floor` are replaced by it.

    >>> GeneralisedMean()(torch.rand(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, exponent: float = 3.0, floor: float = 1e-6) -> None:
        super().__init__()
        self.exponent = nn.Parameter(torch.tensor(exponent))
        self.floor = floor

    def forward(self, features: Tensor) -> Tensor:
        """Pool tokens (n, p, c) or maps (n, c, h, w) to vectors (n, c)."""
        x = positions(features).clamp_min(self.floor)  # (n, p, c)
        # In the log domain, because x^p overflows in half precision.
        log_mean = torch.logsumexp(self.exponent * x.float().log(), dim=1) - torch.tensor(x.shape[1]).log()
        return (log_mean / self.exponent).exp().to(x.dtype)


class AttentionPool(nn.Module):
    """Average over positions with learnt weights: Σ_p a_p x_p with a = softmax_p(x_p · query / √c).

    The query is zero at first, which is average pooling.

    >>> AttentionPool(8)(torch.rand(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(channels))

    def forward(self, features: Tensor) -> Tensor:
        """Pool tokens (n, p, c) or maps (n, c, h, w) to vectors (n, c)."""
        x = positions(features)  # (n, p, c)
        attention = (x @ (self.query / self.query.numel() ** 0.5)).softmax(dim=1)  # (n, p)
        return torch.einsum("np,npc->nc", attention, x)


@dataclass(frozen=True)
class Pooling(Choice):
    """A head by the name of its pooling.

    build         makes the head from the number of channels and the length of the embedding
    class_token   whether it pools the class token of a transformer instead of all positions
    """

    build: Callable[[int, int], nn.Module]
    class_token: bool = False


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
        "the class token, for transformers only",
        "Dosovitskiy et al., ICLR 2021",
        lambda channels, dim: PoolLinear(channels, dim, pool="avg"),  # the average of one position is that position
        class_token=True,
    ),
    Pooling(
        "attention",
        "average weighted by a learnt query",
        "Ilse et al., ICML 2018",
        lambda channels, dim: nn.Sequential(AttentionPool(channels), PoolLinear(channels, dim, pool="avg")),
    ),
)


def build_head(pool: str, channels: int, dim: int) -> nn.Module:
    """The head called `pool`, from features with `channels` to unit embeddings of length `dim`.

    >>> build_head("gem", 8, 4)(torch.rand(2, 8, 7, 7)).shape
    torch.Size([2, 4])
    """
    return find("pool", pool, POOLS).build(channels, dim)
