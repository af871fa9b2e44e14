"""The network of precomputed vectors: hidden layers between the given vectors and the linear layer of the head.

    x ── standardise ── hidden 1 ── … ── hidden k │ hidden k+1 ── … ── linear, unit norm
         features: what feature mixup mixes       │ head: what embeds the mixture

A hidden layer is a linear layer, layer norm and GELU: nothing in it depends on the rest of the batch, so that mixed
vectors can be embedded in any number at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from metrix.core.head import PoolLinear
from metrix.errors import InvalidInput, ShapeError, check_integer

MLP_BACKBONE = "mlp"
LEAST_SCALE = 1e-6  # of an entry, relative to the largest: one that is constant stays so instead of becoming noise


class Standardise(nn.Module):
    """Vectors (n, d) with the mean of each entry subtracted, divided by its standard deviation.

    Both are those of the training vectors, set by `fit` and saved with the network; 0 and 1 before.

    >>> layer = Standardise(2)
    >>> layer.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> layer(torch.tensor([[3.0, 5.0]]))
    tensor([[1., 0.]])
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))

    def fit(self, vectors: Tensor) -> None:
        """Take mean and standard deviation of vectors (n, d); entries that are constant are only centred."""
        x = vectors.double()
        scale = x.std(dim=0, correction=0)
        constant = scale <= LEAST_SCALE * scale.max()
        self.mean.copy_(x.mean(dim=0))
        self.scale.copy_(torch.where(constant, 1.0, scale))

    def forward(self, x: Tensor) -> Tensor:
        """The standardised vectors (n, d)."""
        if x.ndim != 2 or x.shape[1] != len(self.mean):
            raise ShapeError(f"vectors: expected shape (n, {len(self.mean)}), got {tuple(x.shape)}")
        return (x - self.mean) / self.scale


class VectorLayers(nn.Module):
    """The backbone of vectors: standardisation and the hidden layers up to the one that feature mixup mixes.

    >>> VectorLayers(8, (16, 4)).forward_features(torch.randn(2, 8)).shape
    torch.Size([2, 4])
    """

    def __init__(self, inputs: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.stem = Standardise(inputs)
        for number, layer in enumerate(build_layers(inputs, hidden), 1):
            self.add_module(f"layer{number}", layer)
        self.num_features = hidden[-1] if hidden else inputs

    def forward_features(self, x: Tensor) -> Tensor:
        """Features (n, c) of vectors (n, d)."""
        for layer in self.children():
            x = layer(x)
        return x


def build_layers(inputs: int, hidden: Sequence[int]) -> list[nn.Module]:
    """Hidden layers of the given widths."""
    widths = [inputs, *hidden]
    return [
        nn.Sequential(nn.Linear(before, width), nn.LayerNorm(width), nn.GELU()) for before, width in pairwise(widths)
    ]


def build_vector_head(inputs: int, hidden: Sequence[int], dim: int) -> nn.Module:
    """The head: the remaining hidden layers, a linear layer, unit norm.

    >>> build_vector_head(8, (), 4), len(build_vector_head(8, (16,), 4))
    (PoolLinear(
      pool='avg'
      (linear): Linear(in_features=8, out_features=4, bias=True)
    ), 2)
    """
    last = PoolLinear(hidden[-1] if hidden else inputs, dim, pool="avg")  # of one position: the average changes nothing
    return nn.Sequential(*build_layers(inputs, hidden), last) if hidden else last


def check_widths(hidden: Sequence[int], mix_at: int | None) -> tuple[tuple[int, ...], int]:
    """The widths of the hidden layers, and how many of them come before mixing: all by default.

    >>> check_widths((512, 256), None), check_widths((512, 256), 0)
    (((512, 256), 2), ((512, 256), 0))
    """
    widths = tuple(check_integer("hidden", width, least=1) for width in hidden)
    if mix_at is None:
        return widths, len(widths)
    before = check_integer("mix_at", mix_at, least=0)
    if before > len(widths):
        raise InvalidInput(
            f"mix_at: expected at most {len(widths)}, the number of hidden layers (hidden={list(widths)}), got {mix_at}"
        )
    return widths, before
