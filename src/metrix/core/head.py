"""The paper's head: pool a feature map, apply a linear layer, normalise.

`features` (g_m) end in a map (n, c, h, w) or tokens (n, p, c); the head (f_m) turns it into a unit
embedding. What matters to mixup is how the pooling treats a mixture of two maps:

    avg        linear:    pool(λx + (1-λ)x') = λ pool(x) + (1-λ) pool(x')
    max        max-plus:  max_p (λ x_p + (1-λ) x'_p), see `compute.max_plus`
    avg+max    the paper's: the sum of the two
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from metrix.errors import ShapeError, unknown_choice

POOLINGS = ("avg", "max", "avg+max")


def positions(features: Tensor) -> Tensor:
    """Feature maps (n, c, h, w), tokens (n, p, c) or vectors (n, c) as (n, p, c), without a copy.

    >>> positions(torch.zeros(2, 2048, 7, 7)).shape
    torch.Size([2, 49, 2048])
    """
    if features.ndim == 4:
        return features.flatten(2).transpose(1, 2)
    if features.ndim == 3:
        return features
    if features.ndim == 2:
        return features.unsqueeze(1)
    raise ShapeError(
        "features: expected maps (n, channels, height, width), tokens (n, positions, channels) or vectors "
        f"(n, channels), got shape {tuple(features.shape)}"
    )


class PoolLinear(nn.Module):
    """Pooling, a linear layer, unit norm: `head(z) = normalise(linear(pool(z)))`.

    Args:
        channels: of the features.
        dim: of the embedding.
        pool: "avg", "max" or "avg+max".
        linear: a layer to use instead of a new one.

    >>> head = PoolLinear(channels=8, dim=4, pool="avg+max")
    >>> head(torch.rand(3, 8, 7, 7)).shape
    torch.Size([3, 4])
    """

    def __init__(self, channels: int, dim: int, pool: str = "avg+max", linear: nn.Linear | None = None) -> None:
        super().__init__()
        if pool not in POOLINGS:
            raise unknown_choice("pool", pool, POOLINGS)
        self.pool = pool
        if linear is None:
            linear = nn.Linear(channels, dim)
            nn.init.kaiming_normal_(linear.weight, mode="fan_out")
            nn.init.zeros_(linear.bias)
        self.linear = linear

    def pooled(self, features: Tensor) -> Tensor:
        """Features (n, p, c) or a map (n, c, h, w) to vectors (n, c)."""
        x = positions(features)  # (n, p, c)
        if self.pool == "avg":
            return x.mean(1)
        if self.pool == "max":
            return x.amax(1)
        return x.mean(1) + x.amax(1)

    def forward(self, features: Tensor) -> Tensor:
        """The unit embedding (n, d) of each feature map."""
        out: Tensor = self.linear(self.pooled(features))
        return F.normalize(out.float() if out.dtype in (torch.float16, torch.bfloat16) else out, dim=1)

    def extra_repr(self) -> str:
        """The pooling, beside the linear layer that nn.Module prints."""
        return f"pool={self.pool!r}"
