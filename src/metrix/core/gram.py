"""Embedding mixup without mixed embeddings.

For v = λ u_i + (1-λ) u_j, all that a loss needs of v is

    s(a, v) = (λ ⟨a, u_i⟩ + (1-λ) ⟨a, u_j⟩) / ‖v‖
    ‖v‖²    = λ² ⟨u_i, u_i⟩ + (1-λ)² ⟨u_j, u_j⟩ + 2 λ (1-λ) ⟨u_i, u_j⟩

so products of pairs of vectors are enough. u are the unit embeddings (embed mixup), or the outputs of
a linear head before normalisation (feature mixup under average pooling).
"""

from __future__ import annotations

import torch
from torch import Tensor


def inverse_norms(lam: Tensor, left: Tensor, right: Tensor | None = None, unit: bool = True) -> Tensor:
    """1/‖λ l_i + (1-λ) r_j‖ for all i, j: (left, right).

    A mixture that vanishes (opposite vectors, λ = 1/2) has no direction: 0 there.
    """
    products = left @ (left if right is None else right).T
    return inverse_norms_from(products, lam, unit)


def inverse_norms_from(products: Tensor, lam: Tensor, unit: bool) -> Tensor:
    """`inverse_norms` from the products ⟨l_i, r_j⟩; a square Gram matrix where not of unit vectors."""
    both = lam * (1.0 - lam)
    if unit:  # λ² + (1-λ)² + 2λ(1-λ)g = 1 - 2λ(1-λ)(1-g), without the cancellation near λ = 0 and 1
        squared = 1.0 - 2.0 * both * (1.0 - products)
        scale = squared.new_ones(())
    else:
        own = products.diagonal()
        squared = lam.square() * own[:, None] + (1.0 - lam).square() * own[None, :] + 2.0 * both * products
        scale = own.detach().max().clamp_min(torch.finfo(own.dtype).tiny)
    vanishes = squared <= 4.0 * torch.finfo(squared.dtype).eps * scale
    return torch.where(vanishes, 0.0, torch.rsqrt(torch.where(vanishes, 1.0, squared)))


def mixed_similarity(left: Tensor, right: Tensor, lam: Tensor, inverse_norm: Tensor | None) -> Tensor:
    """s(a, v) from ⟨a, u_i⟩, ⟨a, u_j⟩ and λ, each broadcastable to (anchors, left, right)."""
    mixed = torch.lerp(right, left, lam)
    return mixed if inverse_norm is None else mixed * inverse_norm
