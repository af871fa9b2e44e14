"""Losses that compare the embeddings of a student with those of its teacher, example by example or by their relations.

For embeddings s of the student and t of the teacher, ℓ the Huber loss (x²/2 up to |x| = 1, |x| - 1/2 beyond):

    distance   ψ(i, j)    = ‖t_i - t_j‖ / μ_t, μ_t the mean over all pairs      mean over i≠j of ℓ(ψ_t - ψ_s)
    angle      ψ(i, j, k) = cos ∠ t_i t_j t_k                                   mean over i≠j≠k of ℓ(ψ_t - ψ_s)
    cosine     1 - cos(s_i, t_i)                                                mean over i

Distance and angle are relational knowledge distillation (Park et al., CVPR 2019), of which the paper writes sums; its
code takes means, for which its weights of 25 and 50 are. Embeddings enter only through Gram matrices G of the centred
batch, ⟨t_i - t_j, t_k - t_j⟩ = G_ik - G_ij - G_jk + G_jj, and angles are summed over blocks of j: n² numbers for each
example of a block, never n³ or n²·d of them.

Two examples that a network embeds at one place have a distance, 0, but no direction: angles with one of their edges are
left out, and so are all distances of a network that embeds the whole batch at one place.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.core.compute.blocks import rows_in_block
from metrix.core.compute.stream import sum_over_blocks
from metrix.core.generic import Totals
from metrix.core.similarity import gram

# Squared distances below this multiple of the rounding error of a Gram matrix are not told from 0.
COINCIDENT = 32.0


class Compared(NamedTuple):
    """A loss of a student's embeddings against the teacher's, and over how many terms it is the mean."""

    value: Tensor  # ()
    terms: Tensor  # ()


class _Shape(NamedTuple):
    """The shape of a batch of embeddings: the Gram matrix of the centred batch, and the distances."""

    G: Tensor  # (n, n)
    distance: Tensor  # (n, n)
    inverse: Tensor  # (n, n)  1 / distance, 0 where there is none
    apart: Tensor  # (n, n)  whether two examples are at two places


def _measure_shape(x: Tensor) -> _Shape:
    G = gram(x - x.detach().mean(0))
    norms = G.diagonal()
    squared = norms.unsqueeze(0) + norms.unsqueeze(1) - 2.0 * G
    apart = squared.detach() > COINCIDENT * torch.finfo(x.dtype).eps * norms.detach().max()
    apart = apart & ~torch.eye(len(x), dtype=torch.bool, device=x.device)
    safe = torch.where(apart, squared, 1.0)
    return _Shape(G, torch.where(apart, safe.sqrt(), 0.0), torch.where(apart, safe.rsqrt(), 0.0), apart)


def compare_distances(student: Tensor, teacher: Tensor) -> Compared:
    """Relational distillation of distances, from embeddings (n, d) and (n, d')."""
    of = (_measure_shape(student).distance, _measure_shape(teacher).distance)
    n = len(student)
    pairs = n * (n - 1)
    sums = [x.sum() for x in of]
    defined = (sums[0].detach() > 0) & (sums[1].detach() > 0)
    own, wanted = (x * (pairs / torch.where(defined, total, 1.0)) for x, total in zip(of, sums, strict=True))
    value = F.smooth_l1_loss(own, wanted, reduction="sum") / max(pairs, 1)  # the diagonal adds 0
    return Compared(torch.where(defined, value, 0.0 * value), defined * pairs)


def compare_angles(student: Tensor, teacher: Tensor) -> Compared:
    """Relational distillation of angles, from embeddings (n, d) and (n, d')."""
    own, wanted = _measure_shape(student), _measure_shape(teacher)
    n, apart = len(student), own.apart & wanted.apart
    others = ~torch.eye(n, dtype=torch.bool, device=student.device)

    def totals(rows: slice, G: Tensor, inverse: Tensor, G_t: Tensor, inverse_t: Tensor) -> Totals:
        ends = apart[rows]
        counts = ends.unsqueeze(2) & ends.unsqueeze(1) & others  # (j, i, k)
        difference = _cosines(G, inverse, rows) - _cosines(G_t, inverse_t, rows)
        terms = F.smooth_l1_loss(difference, torch.zeros_like(difference), reduction="none")
        number = counts.sum()
        return Totals((terms * counts).sum().reshape(1), number.reshape(1), number)

    size = rows_in_block(n * n, student.device)
    blocks = [slice(start, min(start + size, n)) for start in range(0, n, size)]
    found = sum_over_blocks(totals, blocks, (own.G, own.inverse, wanted.G, wanted.inverse))
    return Compared(found.sums[0] / found.counts[0].clamp_min(1), found.counts[0])


def _cosines(G: Tensor, inverse: Tensor, rows: slice) -> Tensor:
    """cos ∠ x_i x_j x_k (j, i, k) for some j; 0 where it is undefined."""
    products = G - (G[rows].unsqueeze(2) + G[rows].unsqueeze(1) - G.diagonal()[rows].reshape(-1, 1, 1))
    return products * inverse[rows].unsqueeze(2) * inverse[rows].unsqueeze(1)


def compare_directions(student: Tensor, teacher: Tensor) -> Compared:
    """1 - cosine of each embedding and the teacher's, from unit embeddings, both (n, d)."""
    value = (1.0 - (student * teacher).sum(1)).mean()
    return Compared(value, torch.full_like(value, len(student), requires_grad=False))
