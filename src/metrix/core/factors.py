"""λ ~ Beta(α, α), the interpolation factors of eq. mixing."""

from __future__ import annotations

import torch
from torch import Tensor


def draw(
    shape: tuple[int, ...],
    alpha: float,
    generator: torch.Generator | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Independent draws from Beta(α, α).

    α = 1 and α = 2, the paper's, invert the distribution function; any other α takes two gammas.
    """
    at = torch.device("cpu") if generator is None and device.type != "cuda" else device
    at = at if generator is None else generator.device
    if alpha == 1.0:
        return torch.rand(shape, generator=generator, device=at, dtype=dtype).to(device)
    if alpha == 2.0:
        u = torch.rand(shape, generator=generator, device=at, dtype=dtype).to(device)
        # the root in [0, 1] of the distribution function 3λ² - 2λ³ = u
        return u.mul_(2.0).sub_(1.0).asin_().div_(3.0).sin_().add_(0.5)
    shapes = torch.full((2, *shape), alpha, device=at, dtype=torch.float64)
    gammas = torch._standard_gamma(shapes, generator)
    lam = gammas[0] / gammas.sum(0)
    lam = torch.where(lam.isfinite(), lam, 0.5)  # both gammas underflow for a tiny α
    return lam.to(device=device, dtype=dtype)


def choose(count: int, generator: torch.Generator | None) -> int:
    """A uniform choice among `count`; nothing is drawn where there is no choice."""
    if count == 1:
        return 0
    at = generator.device if generator is not None else torch.device("cpu")
    return int(torch.randint(count, (), generator=generator, device=at))
