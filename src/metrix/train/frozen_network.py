"""The network of a finished run, frozen: it embeds the batches that another network is trained on.

The other network may see images of another size, normalisation or number of channels. Inputs x are brought to what the
frozen network expects, where they are and in each step:

    resize((channels(std · x + mean) - mean') / std')

which is affine, so that a mixture of inputs becomes the same mixture of what the frozen network sees.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from metrix.errors import InvalidInput
from metrix.model import DataConfig, Embedder
from metrix.model.saving import RUN_MODEL, WEIGHTS_FILE
from metrix.train.run_folder import open_run_folder

LUMA = (0.299, 0.587, 0.114)  # grey of red, green and blue (ITU-R BT.601), as Pillow computes it


class FrozenNetwork:
    """Embeds inputs of another network by a frozen one; it is no module, so that nothing trains or saves it.

    Args:
        embedder: the network.
        trained: the other one, whose inputs are given.
        at_once: how many of them go through the network at a time; all by default.

    >>> frozen = FrozenNetwork(Embedder("glyphs-cnn", dim=8), trained=Embedder("test_vit", dim=8, pool="avg"))
    >>> frozen(torch.rand(2, 3, 160, 160)).shape
    torch.Size([2, 8])
    >>> frozen.describe_conversion()
    '160 px to 28 px, colours to grey'
    """

    def __init__(self, embedder: Embedder, trained: Embedder, at_once: int | None = None) -> None:
        self.embedder = embedder.requires_grad_(False).eval()
        self.given, self.expected, self.at_once = trained.data_config, embedder.data_config, at_once

    @property
    def dim(self) -> int:
        """Length of the embeddings."""
        return self.embedder.config.dim

    @torch.no_grad()
    def __call__(self, inputs: Tensor) -> Tensor:
        """Unit embeddings (n, dim) of a batch, without gradient, on its device."""
        if next(self.embedder.parameters()).device != inputs.device:
            self.embedder.to(inputs.device)
        pieces = torch.split(inputs, self.at_once or max(len(inputs), 1))
        return torch.cat([self.embedder(self.convert(piece)) for piece in pieces])

    def convert(self, inputs: Tensor) -> Tensor:
        """A batch (n, …) of the other network's inputs as the frozen network expects them."""
        given, expected = self.given, self.expected
        if self.embedder.takes_vectors:
            return inputs
        x = inputs.to(torch.promote_types(inputs.dtype, torch.float32))  # torch resizes no bfloat16 on a CPU
        if (given.mean, given.std, given.channels) != (expected.mean, expected.std, expected.channels):
            x = x * _per_channel(given.std, x) + _per_channel(given.mean, x)
            if given.channels == 3 and expected.channels == 1:
                x = (x * _per_channel(LUMA, x)).sum(1, keepdim=True)
            x = (x - _per_channel(expected.mean, x)) / _per_channel(expected.std, x)
        if x.shape[-1] == expected.size:
            return x
        return F.interpolate(x, (expected.size, expected.size), mode="bilinear", antialias=True)

    def describe_conversion(self) -> str:
        """What is done to inputs before the frozen network sees them, in words; empty if nothing is."""
        given, expected = self.given, self.expected
        if self.embedder.takes_vectors:
            return ""
        parts = []
        if given.size != expected.size:
            parts.append(f"{given.size} px to {expected.size} px")
        if given.channels != expected.channels:
            parts.append("colours to grey" if expected.channels == 1 else "grey to colours")
        before, after = _describe_scale(given), _describe_scale(expected)
        if before != after:
            parts.append(f"{before} to {after}")
        return ", ".join(parts)


def open_frozen_network(run: Path, key: str, trained: Embedder, at_once: int | None = None) -> FrozenNetwork:
    """The frozen network of a finished run.

    Args:
        run: its folder.
        key: the setting that names the run, for errors.
        trained, at_once: as in `FrozenNetwork`.

    Raises:
        InvalidInput: there is no run, it is not finished, or it takes vectors where images are given, or the reverse.
    """
    try:
        folder = open_run_folder(run)
    except InvalidInput as error:
        raise InvalidInput(f"{key}: expected a finished run: {error}") from error
    if not (folder.path / RUN_MODEL / WEIGHTS_FILE).is_file():
        raise InvalidInput(
            f"{key}: expected a finished run, got {run}, which has no trained model yet; resume it with metrix train "
            f"--resume {run}, or make the model of its best epoch so far with metrix train --finish {run}"
        )
    embedder = Embedder.load(run)
    takes, given = _describe_inputs(embedder), _describe_inputs(trained)
    if takes != given:
        raise InvalidInput(f"{key}: expected a run on {given}, as the data are, got {run}, which takes {takes}")
    return FrozenNetwork(embedder, trained, at_once)


def _describe_inputs(embedder: Embedder) -> str:
    return f"vectors of {embedder.config.inputs} numbers" if embedder.takes_vectors else "images"


def _per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


def _scale(config: DataConfig) -> list[tuple[float, ...]]:
    """Mean and std: one number each where all channels have the same."""
    return [values[:1] if len(set(values)) == 1 else values for values in (config.mean, config.std)]


def _describe_scale(config: DataConfig) -> str:
    mean, std = (",".join(f"{value:g}" for value in values) for values in _scale(config))
    return f"mean {mean} and std {std}"
