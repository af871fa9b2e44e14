"""The influence loss of backward-compatible training (Shen et al., CVPR 2020): new embeddings shall work with what an
old model made of the same classes.

    L_inf = 1/n Σ_i -log( e^{s(z_i, μ_{y_i}) / T} / Σ_c e^{s(z_i, μ_c) / T} )

z_i are new embeddings, μ_c the centre of class c by the frozen old model, which takes the place of the old classifier,
for classes that the old model was never trained on, too. Mixed, an old vector o_j of the same class enters the new one,

    v_i = λ z_i + (1 - λ) o_j          y_j = y_i, λ ~ Beta(α, α)

and v_i, renormalised, has the label of both. That needs no mixed vectors: s(v_i, μ_c) = (λ s(z_i, μ_c) + (1 - λ)
s(o_j, μ_c)) / ‖v_i‖, the closed form of embedding mixup.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.closed_form import inverse_norms, mixed_similarity
from metrix.core.validation import at_least_float32, unit
from metrix.errors import ShapeError

TEMPERATURE = 0.05


def influence_loss(embeddings: Tensor, labels: Tensor, centres: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """L_inf of embeddings (n, d) against the unit centres (classes, d) of an old model.

    >>> influence_loss(torch.eye(2), torch.tensor([0, 1]), torch.eye(2), temperature=1.0).round(decimals=4)
    tensor(0.3133)
    """
    z = unit(at_least_float32(embeddings))
    _check(z, centres)
    return F.cross_entropy(z @ centres.to(z).T / temperature, labels.to(z.device))


def mixed_influence_loss(
    embeddings: Tensor,
    labels: Tensor,
    centres: Tensor,
    old: Tensor,
    partners: Tensor,
    lam: Tensor,
    temperature: float = TEMPERATURE,
) -> Tensor:
    """L_inf of mixtures of new embeddings with old vectors of their class.

    Args:
        embeddings: (n, d) of the new model.
        labels: (n,).
        centres: (classes, d) of the old model, at unit norm.
        old: (n, d) vectors of the batch by the old model.
        partners: (n,) which of them each embedding is mixed with.
        lam: (n,) λ of each, the share of the new embedding.
        temperature: T.
    """
    z = unit(at_least_float32(embeddings))
    _check(z, centres)
    o = unit(at_least_float32(old)).to(z)[partners.to(z.device)]
    lam = lam.to(z)
    norms, centres = inverse_norms((z * o).sum(dim=1), lam), centres.to(z)
    S = mixed_similarity(z @ centres.T, o @ centres.T, lam[:, None], norms[:, None])  # (n, classes)
    return F.cross_entropy(S / temperature, labels.to(z.device))


def draw_partners(labels: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """For each row, one of the same class at random, another one where there is one.

    >>> draw_partners(torch.tensor([0, 1, 0])).tolist()
    [2, 1, 0]
    """
    labels = labels.cpu()
    alike = labels[:, None] == labels[None, :]
    alone = alike.sum(dim=1) == 1
    alike &= ~torch.eye(len(labels), dtype=torch.bool) | alone[:, None]
    return torch.multinomial(alike.float(), 1, generator=generator)[:, 0]


def class_centres(vectors: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The unit centres (classes, d) of vectors (n, d); of a class without one, zeros, which no embedding is like."""
    sums = torch.zeros(classes, vectors.shape[1], dtype=torch.float64)
    sums.index_add_(0, labels.cpu(), unit(vectors.cpu().double()))
    return F.normalize(sums, dim=1).float()


def _check(embeddings: Tensor, centres: Tensor) -> None:
    if embeddings.shape[1] != centres.shape[1]:
        raise ShapeError(
            f"embeddings: expected dimension {centres.shape[1]}, of the old model, got {embeddings.shape[1]}"
        )
