"""Matryoshka: the loss of prefixes of an embedding beside that of the whole, so that its first numbers do alone.

    loss = loss(f) + w Σ_d loss(f_d)        f_d = f[:d] / ‖f[:d]‖

One weight w for all prefixes; with w = 1 this is the sum of Kusupati et al., NeurIPS 2022. Labels, mixing pairs, hard
negatives (chosen by the whole embedding) and λ are the same for all terms, so a prefix adds the products of vectors of
d numbers and nothing else: neither the network nor a mixed example is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from metrix.core.settings import check_weight
from metrix.core.similarity import divide_by_norm
from metrix.core.validation import refuse_unusable, values_are_at_hand
from metrix.errors import InvalidInput, ShapeError, check_integer, check_integers


class Prefixes(NamedTuple):
    """Prefixes of an embedding that are trained with it.

    Args:
        dims: their lengths, in ascending order.
        weight: of the loss of each; that of the whole has 1.
    """

    dims: tuple[int, ...] = ()
    weight: float = 1.0

    @classmethod
    def of(cls, dims: int | Sequence[int], weight: float = 1.0) -> Prefixes:
        """The prefixes of the given lengths, in any order; one that is given twice counts once.

        >>> Prefixes.of((128, 64)).dims
        (64, 128)
        """
        given = (dims,) if isinstance(dims, int) else dims
        checked = check_integers("matryoshka", given, least=1, most=10**9)
        return cls(tuple(sorted(set(checked))), check_weight("matryoshka_weight", weight))

    def within(self, dim: int) -> Prefixes:
        """Those that are shorter than an embedding of `dim` numbers; the whole is trained anyway.

        Raises:
            ShapeError: one is longer than the embedding.
        """
        if self.dims and self.dims[-1] > dim:
            raise ShapeError(
                f"matryoshka: expected prefixes of an embedding of dimension {dim}, got "
                f"{', '.join(map(str, self.dims))}; leave out those above {dim}, or train a longer embedding"
            )
        return Prefixes(tuple(d for d in self.dims if d < dim), self.weight)


WHOLE_ONLY = Prefixes()


def check_prefix(dim: object, whole: int, trained: Sequence[int] = (), force: bool = False) -> int:
    """The length of a prefix of embeddings of `whole` numbers, for which a model must have been trained unless forced.

    >>> check_prefix(64, whole=256, trained=(64, 128))
    64
    """
    wanted = check_integer("dim", dim, least=1)
    if wanted > whole:
        raise InvalidInput(f"dim: expected at most {whole}, of the whole embedding, got {wanted}")
    if wanted != whole and wanted not in trained and not force:
        known = f"a prefix that the model was trained for, {', '.join(map(str, trained))}, or the whole, {whole}"
        if not trained:
            known = f"the whole, {whole}, of a model whose prefixes were not trained (train with --matryoshka {wanted})"
        raise InvalidInput(
            f"dim: expected {known}, got {wanted}; other prefixes lose more, and are taken with --force-dim (in "
            "Python, force_dim=True)"
        )
    return wanted


def unit_prefix(x: Tensor, dim: int) -> Tensor:
    """The first `dim` numbers of vectors (n, d), brought to unit norm."""
    part = x[:, :dim]
    norm: Tensor = torch.linalg.vector_norm(part.detach(), dim=1, keepdim=True)
    if values_are_at_hand(norm) and norm.numel():
        refuse_unusable(norm, f"the first {dim} dimensions of embeddings")
    return divide_by_norm(part, norm)
